package cpu

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unsafe"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// kernel is a tier's function for an op whose record P points to.
type kernel[P any] func(t *tier, q *registry.Queue, a P) registry.Status

// selfTest returns a known-answer test of o's kernels: an odd shape and the neighbours of the thresholds at which they
// take another path, run by the reference, too. It takes a millisecond or two.
func selfTest[P any](o described, ref kernel[P], exact bool, thresholds map[string][]int64) func(q *registry.Queue) error {
	launch := func(q *registry.Queue, args unsafe.Pointer) registry.Status {
		return ref(reference, q, *(*P)(unsafe.Pointer(&args)))
	}
	return func(q *registry.Queue) error {
		d := o.Descriptor()
		return sample.SelfTest(d, launch, exact, selfCases(d, thresholds)...)(q)
	}
}

// packedWeights are the dtypes of weights whose Lane16 layout the self-tests of a product run, and the length of their
// rows; of which there are, unless their number is what is tested, as few as fill one panel and begin another.
var packedWeights = map[registry.Op]struct {
	k      int64
	dtypes []tensor.DType
}{
	ops.OpMatmulBT:      {19, []tensor.DType{tensor.F32}},
	ops.OpMatmulBTQuant: {64, []tensor.DType{tensor.Q4_0, tensor.Q8_0}},
}

// mostTested bounds the thresholds that self-tests try, which a program's first call waits for. Beyond it drivers cut
// blocks and kernels do nothing new; package verify runs the neighbours of all of them.
const mostTested = manyRows

// selfCases lists the calls of a self-test. Of several dtypes of packed weights the first has the neighbours of thresholds,
// the others the thresholds themselves.
func selfCases(d registry.Descriptor, thresholds map[string][]int64) []sample.Case {
	few := map[string][]int64{}
	for trait, list := range thresholds {
		few[trait] = slices.DeleteFunc(slices.Clone(list), func(n int64) bool { return n > mostTested })
	}
	list := append([]sample.Case{{Name: "plain", Op: d.Op}}, sample.CasesFor(d, few)...)
	w, ok := packedWeights[d.Op]
	if !ok {
		return list
	}
	var packed []sample.Case
	for i, t := range w.dtypes {
		for _, c := range list {
			if c.Layouts != nil {
				continue // the same call below
			}
			if i > 0 && !onThreshold(c.Shape, few) {
				continue
			}
			c.Name = fmt.Sprintf("%s/%v", c.Name, t)
			c.Types, c.Layouts = map[string]tensor.DType{"b": t}, map[string]tensor.Layout{"b": tensor.Lane16}
			shape := sample.Shape{"K": w.k, "N": 17}
			maps.Copy(shape, c.Shape)
			c.Shape = shape
			packed = append(packed, c)
		}
	}
	return packed
}

// onThreshold reports whether every extent given is a threshold.
func onThreshold(given sample.Shape, thresholds map[string][]int64) bool {
	for symbol, n := range given {
		if !slices.Contains(thresholds[strings.ToLower(symbol)], n) {
			return false
		}
	}
	return true
}
