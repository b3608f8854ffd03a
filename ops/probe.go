package ops

import (
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Codes of the layouts that DropinProbe can name, as vLLM's drop-in kernels number them.
const (
	ProbeStrided = uint8(iota) // any strides; the only one that the probe takes
	ProbePackedFP4
	ProbeScaleLinear
	ProbeScaleSwizzled
	ProbeMarlin
)

// DropinProbeArgs is the record of DropinProbe: out = in + scalar, and the first word of workspace is the low half of
// scalar_type XOR layout, the others 0. It shows that strides, semantic type ids, a workspace and a resident scalar reach a
// foreign kernel unchanged. The scalar is the operand if that is there, else the attribute.
type DropinProbeArgs struct {
	registry.Header
	Out            tensor.Tensor `op:"out" shape:"R,C" dtype:"f32" layout:"strided"`
	In             tensor.Tensor `op:"in" shape:"R,C" dtype:"f32" layout:"strided"`
	Workspace      tensor.Tensor `op:"out" shape:"W" dtype:"i32"`    // at least one word; need not be zero on entry
	ResidentScalar tensor.Tensor `op:"in,opt" shape:"1" dtype:"f32"` // on the queue's device
	ScalarType     int64         // tensor.F32.ScalarID()
	Scalar         float32       // any value; 0 with ResidentScalar
	WorkspaceSlot  int32         // >= 0, not ScalarSlot
	ScalarSlot     int32         // >= 0
	Layout         uint8         // ProbeStrided
}

// DropinProbe tests the ABI that foreign kernels are called through. No model calls it.
var DropinProbe = define(OpDropinProbe, "dropin_probe", "diag", "abi_probe",
	"in + scalar, and what a foreign kernel saw of its call in a workspace",
	func(a *DropinProbeArgs) *OpError {
		for _, x := range [...]struct {
			name string
			t    *tensor.Tensor
		}{{"out", &a.Out}, {"in", &a.In}, {"workspace", &a.Workspace}} {
			if x.t.Numel() == 0 {
				return bad(ErrShape, x.name, "no elements in %v", x.t.Dims())
			}
		}
		switch {
		case a.ScalarType != tensor.F32.ScalarID():
			return bad(ErrAttr, "scalar_type", "%#x is not f32's %#x", a.ScalarType, tensor.F32.ScalarID())
		case a.Layout != ProbeStrided:
			return bad(ErrAttr, "layout", "%d is not strided (%d)", a.Layout, ProbeStrided)
		case a.ResidentScalar.Present() && a.Scalar != 0:
			return bad(ErrAttr, "scalar", "%v beside a resident scalar", a.Scalar)
		case a.WorkspaceSlot == a.ScalarSlot:
			return bad(ErrAttr, "workspace_slot", "%d is the scalar's", a.WorkspaceSlot)
		}
		return first(notNegativeInt("workspace_slot", a.WorkspaceSlot), notNegativeInt("scalar_slot", a.ScalarSlot))
	})
