package ops

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/opmux/opmux/registry"
	"github.com/stretchr/testify/require"
)

// TestDocs compares the operand tables under docs/ops with the descriptors. A table belongs to the op that the heading
// above it names first.
func TestDocs(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "docs", "ops", "*.md"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	heading := regexp.MustCompile(`^#+ (\w+)`)
	tables := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var op *registry.Descriptor
		var rest []registry.Operand // rows that the present table still owes
		for _, line := range strings.Split(string(text), "\n") {
			if m := heading.FindStringSubmatch(line); m != nil {
				if id, ok := registry.Lookup(m[1]); ok {
					d := byID[id].desc
					d.Operands = byID[id].spec().list
					op = &d
				}
			}
			if line == "| operand | role | shape | dtype | layout |" {
				require.NotNil(t, op, file)
				tables++
				rest = op.Operands
				continue
			}
			if rest == nil || strings.HasPrefix(line, "| ---") {
				continue
			}
			if !strings.HasPrefix(line, "|") {
				require.Empty(t, rest, "%s: operands of %s that the table lacks", file, op.Name)
				rest = nil
				continue
			}
			require.NotEmpty(t, rest, "%s: row beyond the operands of %s: %s", file, op.Name, line)
			o := rest[0]
			rest = rest[1:]
			if rest == nil {
				rest = []registry.Operand{}
			}
			role := o.Role.String()
			if o.Optional {
				role += " opt"
			}
			want := "| " + strings.Join([]string{o.Name, role, strings.ReplaceAll(o.Shape, "|", `\|`), o.DType, o.Layout}, " | ") + " |"
			require.Equal(t, want, line, "%s: %s", file, op.Name)
		}
	}
	require.GreaterOrEqual(t, tables, 13)
}
