package cheader

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

var file = filepath.Join("..", "..", "..", "csrc", "include", "opmux.h")

func TestFresh(t *testing.T) {
	want, err := Text()
	require.NoError(t, err)
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, have), `csrc/include/opmux.h is stale: run "go generate ./ops"`)
}

// compiler returns a C or C++ compiler, or skips.
func compiler(t *testing.T, names ...string) string {
	for _, n := range names {
		if p, err := exec.LookPath(n); err == nil {
			return p
		}
	}
	t.Skipf("none of %v is installed: the header is not compiled here", names)
	return ""
}

// TestCompiles: the header's own assertions hold, and no warning is raised, in both languages.
func TestCompiles(t *testing.T) {
	for _, l := range []struct {
		lang, std string
		names     []string
	}{{"c", "c11", []string{"gcc", "cc", "clang"}}, {"c++", "c++17", []string{"g++", "c++", "clang++"}}} {
		t.Run(l.std, func(t *testing.T) {
			cmd := exec.Command(compiler(t, l.names...), "-x", l.lang, "-std="+l.std, "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", file)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
		})
	}
}

// TestLayout asks a C compiler for every size and offset and compares them with Go's.
func TestLayout(t *testing.T) {
	cc := compiler(t, "gcc", "cc", "clang")
	var want []string
	src := &bytes.Buffer{}
	fmt.Fprint(src, "#include <stdio.h>\n#include \"opmux.h\"\nint main(void) {\n")
	ask := func(expr string, n uintptr) {
		fmt.Fprintf(src, "\tprintf(\"%%zu\\n\", (size_t)(%s));\n", expr)
		want = append(want, fmt.Sprintf("%s %d", expr, n))
	}
	structs := func(name string, t reflect.Type) {
		ask("sizeof("+name+")", t.Size())
		for f := range t.Fields() {
			if f.Name == "_" {
				continue
			}
			field := ops.FieldName(f.Name)
			switch {
			case f.Anonymous:
				field = "call"
			case name == "opmux_tensor" && f.Name == "DType":
				field = "dtype"
			case name == "opmux_tensor" && f.Name == "Stride":
				field = "stride_bytes"
			}
			ask("offsetof("+name+", "+field+")", f.Offset)
			if f.Type.Kind() != reflect.Interface { // an error is two words in Go, a pointer and a length in C
				ask("sizeof((("+name+" *)0)->"+field+")", f.Type.Size())
			}
		}
	}
	structs("opmux_device", reflect.TypeFor[tensor.Device]())
	structs("opmux_tensor", reflect.TypeFor[tensor.Tensor]())
	structs("opmux_call", reflect.TypeFor[registry.Header]())
	structs("opmux_rope_params", reflect.TypeFor[ops.RopeParams]())
	structs("opmux_fused_step", reflect.TypeFor[ops.FusedStep]())
	for _, d := range registry.Descriptors() {
		structs(CName(d.Name), d.Record)
	}
	fmt.Fprint(src, "\treturn 0;\n}\n")

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "probe.c"), src.Bytes(), 0o600))
	out, err := exec.Command(cc, "-std=c11", "-I", filepath.Dir(file), "-o", filepath.Join(dir, "probe"), filepath.Join(dir, "probe.c")).CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = exec.Command(filepath.Join(dir, "probe")).Output()
	require.NoError(t, err)
	got := strings.Fields(string(out))
	require.Len(t, got, len(want))
	for i, w := range want {
		expr, n, _ := strings.Cut(w, ") ")
		require.Equal(t, n, got[i], expr+")")
	}
}

// TestRefused: a record with a field that has no fixed layout in C is an error, not a guess.
func TestRefused(t *testing.T) {
	type record struct {
		registry.Header
		Names []string
	}
	_, err := header(1, []registry.Descriptor{{Name: "mine", Record: reflect.TypeFor[record]()}}, nil)
	require.ErrorContains(t, err, "record of mine: field Names: []string has no C form")
}
