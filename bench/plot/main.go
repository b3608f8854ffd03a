// Command plot draws what opmux bench has measured as a roofline: operations a second over operations for each byte,
// under what the machine reached in the same rounds, reading memory and multiplying.
//
//	opmux bench --op 'gemm.*' --json > report.json
//	go -C bench/plot run . -o roofline report.json
//
// writes roofline.png and roofline.svg.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/opmux/opmux/bench"
)

func main() {
	out := flag.String("o", "roofline", "`name` of the pictures, without extension")
	op := flag.String("op", "", "draw only ops that this `pattern` fits")
	title := flag.String("title", "", "`text` above the picture; the processor if not given")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: plot [flags] REPORT.json\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *out, options{op: *op, title: *title}); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

// run draws the report in a file as out.png and out.svg.
func run(file, out string, o options) error {
	r, err := bench.ReadFile(file)
	if err != nil {
		return err
	}
	p, left, err := roofline(r, o)
	if err != nil {
		return err
	}
	for _, w := range left {
		fmt.Fprintln(os.Stderr, "plot: not drawn:", w)
	}
	return save(p, out)
}
