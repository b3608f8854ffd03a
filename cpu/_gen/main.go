// Command _gen writes the amd64 kernels of package simd: one Go assembly file
// per entry of files, and one file of stubs for all of them. Run it with
//
//	go generate ./cpu/internal/simd
//
// The output is committed and depends on nothing but this program, so that
// running it again must leave a clean tree.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/buildtags"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
)

// file is one assembly file: its name without the suffix _amd64.s, the most
// that its functions may ask of the CPU, and what fills it.
type file struct {
	name  string
	level level
	build func(*kit)
}

// files lists what is generated, in the order of the stub file.
var files = []file{
	{"probe512", avx512, probes512},
	{"probe256", avx2, probes256},
	{"gemm512", avx512, gemmAVX512},
	{"gemm256", avx2, gemmAVX2},
	{"gemmvnni", avxvnni, gemmAVXVNNI},
	{"vec512", avx512, vecKernels},
	{"vec256", avx2, vecKernels},
	{"amx", amx, amxKernels},
}

func main() {
	dir := flag.String("dir", ".", "folder of package simd")
	flag.Parse()
	if err := run(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "_gen:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	cfg := printer.Config{Name: "cpu/_gen", Pkg: "simd"}
	stubs := ir.NewFile()
	for _, f := range files {
		k := &kit{Context: build.NewContext(), level: min(f.level, avx512)}
		constrain(k.Context)
		f.build(k)
		out, err := k.Result()
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if err := pass.Compile.Execute(out); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if err := check(out, f.level); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if err := encodeTiles(out); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		encodeVEX(out)
		if err := write(dir, f.name+"_amd64.s", printer.NewGoAsm(cfg), out); err != nil {
			return err
		}
		stubs.Constraints = out.Constraints
		stubs.Sections = append(stubs.Sections, out.Sections...)
	}
	return write(dir, "stub_amd64.go", printer.NewStubs(cfg), stubs)
}

// constrain keeps the assembly out of builds that asked for plain Go.
func constrain(c *build.Context) {
	c.Constraint(buildtags.Term("!noasm"))
	c.Constraint(buildtags.Term("!purego"))
}

func write(dir, name string, p printer.Printer, f *ir.File) error {
	b, err := p.Print(f)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(filepath.Join(dir, name), b, 0o644)
}
