package opmux_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryExportedNameIsDocumented walks all packages of the tree, nested modules too.
func TestEveryExportedNameIsDocumented(t *testing.T) {
	packages := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules") {
			return filepath.SkipDir
		}
		files, err := filepath.Glob(filepath.Join(path, "*.go"))
		require.NoError(t, err)
		if len(files) == 0 {
			return nil
		}
		fset := token.NewFileSet()
		byPackage := map[string][]*ast.File{}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			a, err := parser.ParseFile(fset, f, nil, parser.ParseComments)
			require.NoError(t, err)
			byPackage[a.Name.Name] = append(byPackage[a.Name.Name], a)
		}
		for name, files := range byPackage {
			p, err := doc.NewFromFiles(fset, files, path)
			require.NoError(t, err)
			packages++
			require.NotEmpty(t, p.Doc, "package %s in %s has no comment", name, path)
			if name == "main" || strings.Contains(path, "_gen") {
				continue
			}
			for _, missing := range undocumented(p) {
				t.Errorf("%s: %s has no comment", path, missing)
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, packages, 12)
}

// undocumented lists exported names without a comment. A comment on a group of constants or variables covers the group;
// fields and interface methods are covered by their type's.
func undocumented(p *doc.Package) (missing []string) {
	values := func(list []*doc.Value) {
		for _, v := range list {
			if v.Doc != "" {
				continue
			}
			for _, s := range v.Decl.Specs {
				vs := s.(*ast.ValueSpec)
				for _, n := range vs.Names {
					if n.IsExported() && vs.Doc == nil && vs.Comment == nil {
						missing = append(missing, n.Name)
					}
				}
			}
		}
	}
	funcs := func(prefix string, list []*doc.Func) {
		for _, f := range list {
			if f.Doc == "" && !wellKnown[f.Name] {
				missing = append(missing, prefix+f.Name)
			}
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs("", p.Funcs)
	for _, t := range p.Types {
		if t.Doc == "" {
			missing = append(missing, t.Name)
		}
		values(t.Consts)
		values(t.Vars)
		funcs("", t.Funcs)
		funcs(t.Name+".", t.Methods)
	}
	return missing
}

// wellKnown are methods whose meaning the language or the standard library fixes.
var wellKnown = map[string]bool{"Error": true, "Unwrap": true, "Is": true, "String": true, "MarshalText": true, "UnmarshalJSON": true}
