package opmux_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWeakPoints checks docs/weak-points.md: one row for each number, and every test that a row names exists in the
// package that it names.
func TestWeakPoints(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("docs", "weak-points.md"))
	require.NoError(t, err)
	row := regexp.MustCompile(`(?m)^\| W(\d+) \|.*\|$`)
	named := regexp.MustCompile("`([a-z0-9/]+)\\.(Test[A-Za-z0-9_]+)`")
	tests := testFunctions(t)
	rows := map[int]string{}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		require.NotContains(t, rows, n, "W%d has two rows", n)
		rows[n] = m[0]
		for _, ref := range named.FindAllStringSubmatch(m[0], -1) {
			require.True(t, tests[ref[1]][ref[2]], "W%d: package %s has no test %s", n, ref[1], ref[2])
		}
		cells := strings.Split(strings.Trim(m[0], "|"), "|")
		require.Len(t, cells, 3, "W%d", n)
		require.NotEmpty(t, strings.TrimSpace(cells[2]), "W%d says nothing", n)
	}
	for n := 1; n <= 47; n++ {
		require.Contains(t, rows, n, "no row for W%d", n)
	}
	require.Len(t, rows, 47)
}

// testFunctions lists the test functions of the tree by the folder of their package; that of the root is "opmux".
func testFunctions(t *testing.T) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !strings.HasSuffix(file, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := path.Dir(filepath.ToSlash(file))
		if dir == "." {
			dir = "opmux"
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
				if all[dir] == nil {
					all[dir] = map[string]bool{}
				}
				all[dir][fn.Name.Name] = true
			}
		}
		return nil
	})
	require.NoError(t, err)
	return all
}
