package opfile

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sort"
	"strings"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// maxFile bounds what Open reads.
const maxFile = 64 << 20

// Open reads and parses a file of at most 64 MiB (ErrTooLarge).
func Open(name string) (*File, error) {
	info, err := os.Stat(name) // before opening: a pipe would block
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errorf(ErrFormat, name, "not a regular file")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, errorf(ErrTooLarge, name, "more than %d bytes", maxFile)
	}
	return Parse(b)
}

// Parse reads a file. Memory stays in proportion to it. Errors wrap ErrFormat, or ErrNoOp for JSON in none of the forms. A
// file of a type that no op serves is no error: its Routes are empty, and its operands are not read.
func Parse(text []byte) (*File, error) {
	var fields map[string]json.RawMessage
	if err := unmarshal(text, &fields); err != nil {
		return nil, errorf(ErrFormat, "", "%v", err)
	}
	f := &File{size: int64(len(text))}
	form := formOf(fields)
	if form == nil {
		return nil, errorf(ErrNoOp, "", "neither op_type and inputs, nor op and expected, nor a table of a format")
	}
	if err := field(fields, "name", &f.Name); err != nil {
		return nil, err
	}
	if err := form(f, fields); err != nil {
		return nil, err
	}
	return f, nil
}

// formOf picks the reader by the fields that only its form has.
func formOf(fields map[string]json.RawMessage) func(*File, map[string]json.RawMessage) error {
	for _, form := range []struct {
		read func(*File, map[string]json.RawMessage) error
		keys []string
	}{
		{readCommon, []string{"op_type", "inputs"}},
		{readRule, []string{"op", "expected"}},
		{readBlocks, []string{"ggml_type", "quantized", "dequantized_f32"}},
		{readDecode, []string{"dtype", "f32_bits"}},
		{readEncode, []string{"dtype", "x_f32_bits", "code"}},
	} {
		if !slices.ContainsFunc(form.keys, func(k string) bool { return fields[k] == nil }) {
			return form.read
		}
	}
	return nil
}

// unmarshal decodes JSON, numbers in interfaces as they are written.
func unmarshal(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("more text after the value")
	}
	return nil
}

// field decodes one field, if it is there.
func field(fields map[string]json.RawMessage, name string, v any) error {
	if raw := fields[name]; raw != nil {
		if err := unmarshal(raw, v); err != nil {
			return errorf(ErrFormat, name, "%v", err)
		}
	}
	return nil
}

// readCommon reads the common form: op_type, attributes, and inputs and outputs with name, dtype, shape and flat data.
// ONNX operands also have the slot that they take in the operator's list of arguments.
func readCommon(f *File, fields map[string]json.RawMessage) error {
	var in, out []tensorJSON
	err := field(fields, "op_type", &f.Type)
	if err != nil {
		return err
	}
	op, isOp := registry.Lookup(f.Type)
	k := kinds[f.Type]
	if !isOp && k.routes == nil {
		return nil
	}
	for name, v := range map[string]any{"attributes": &f.attrs, "opset": &f.Opset, "tolerance": &f.tolerance,
		"inputs": &in, "outputs": &out} {
		if err := field(fields, name, v); err != nil {
			return err
		}
	}
	if f.Inputs, err = readTensors("inputs", in); err != nil {
		return err
	}
	if f.Outputs, err = readTensors("outputs", out); err != nil {
		return err
	}
	if isOp {
		d := descriptor(op)
		misfit, fits := describes(&d, f)
		switch {
		case fits:
			f.routes = []route{{op, callRecord(&d)}}
			return nil
		case k.routes == nil:
			return errorf(ErrFormat, misfit, "no operand of %s", f.Type)
		}
	}
	f.routes = k.routes
	if k.args != "" {
		ins, outs, _ := strings.Cut(k.args, " -> ")
		return first(nameSlots("inputs", f.Inputs, in, strings.Fields(ins)), nameSlots("outputs", f.Outputs, out, strings.Fields(outs)))
	}
	return nil
}

func descriptor(op registry.Op) registry.Descriptor {
	for _, d := range registry.Descriptors() {
		if d.Op == op {
			return d
		}
	}
	return registry.Descriptor{}
}

// first returns the first error, if any.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func readTensors(where string, list []tensorJSON) (out []Tensor, err error) {
	seen := map[string]bool{}
	for i := range list {
		o := &list[i]
		if o.Name == "" || seen[o.Name] {
			return nil, errorf(ErrFormat, where, "operand %d is named %q", i, o.Name)
		}
		seen[o.Name] = true
		t, err := o.read()
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// nameSlots gives operands the names that the adapter knows them by, from their slot or else their place in the list.
func nameSlots(where string, list []Tensor, from []tensorJSON, names []string) error {
	seen := map[int]bool{}
	for i := range list {
		slot := i
		if from[i].Slot != nil {
			slot = *from[i].Slot
		}
		if slot < 0 || slot >= len(names) || seen[slot] {
			return errorf(ErrFormat, where, "%s has slot %d of %d", list[i].Name, slot, len(names))
		}
		seen[slot] = true
		list[i].key = names[slot]
	}
	return nil
}

// readRule reads a rule of sampling or rope: op, params, inputs that may be words, and what is expected, by name.
func readRule(f *File, fields map[string]json.RawMessage) error {
	var expected map[string]any
	for name, v := range map[string]any{"op": &f.Type, "params": &f.attrs, "inputs": &f.facts, "tolerance": &f.tolerance,
		"expected": &expected} {
		if err := field(fields, name, v); err != nil {
			return err
		}
	}
	if f.tolerance == nil {
		f.tolerance = &Tolerance{}
	}
	for name, v := range expected {
		t := Tensor{Name: name, key: name, DType: "f64"}
		shape, values, err := nested(v)
		if err == nil {
			t.Data, err = memory(tensor.F64, shape...)
		}
		if err != nil {
			return errorf(ErrFormat, name, "%v", err)
		}
		copy(tensor.Slice[float64](&t.Data), values)
		f.Outputs = append(f.Outputs, t)
	}
	sort.SliceStable(f.Outputs, func(i, j int) bool { return f.Outputs[i].Name < f.Outputs[j].Name })
	f.routes = kinds["rule "+f.Type].routes
	return nil
}

// nested flattens arrays of equal lengths; true is 1, false 0.
func nested(v any) (shape []int64, values []float64, err error) {
	list, ok := v.([]any)
	if !ok {
		if b, isBool := v.(bool); isBool {
			return nil, []float64{map[bool]float64{true: 1}[b]}, nil
		}
		x, err := toFloat(v)
		return nil, []float64{x}, err
	}
	shape = []int64{int64(len(list))}
	for i, e := range list {
		inner, more, err := nested(e)
		if err != nil {
			return nil, nil, err
		}
		if i == 0 {
			shape = append(shape, inner...)
		} else if !slices.Equal(shape[1:], inner) {
			return nil, nil, fmt.Errorf("rows of different lengths")
		}
		values = append(values, more...)
	}
	return shape, values, nil
}

// readBlocks reads a table of a ggml block format: weights, what they unpack to, and products with activations.
func readBlocks(f *File, fields map[string]json.RawMessage) error {
	if err := field(fields, "ggml_type", &f.Type); err != nil {
		return err
	}
	dt := parseDType(f.Type)
	if f.routes = blockRoutes(dt); f.routes == nil {
		return nil
	}
	var h struct {
		N, K       int64
		Quantized  []byte
		Unpacked   []byte
		Activation string
		Matmul     []struct {
			M int64
			X []byte `json:"x_f32"`
			Y []byte `json:"y_dequant_f64"`
		}
	}
	for name, v := range map[string]any{"n": &h.N, "k": &h.K, "quantized": &h.Quantized,
		"dequantized_f32": &h.Unpacked, "activation_type": &h.Activation, "matmul": &h.Matmul} {
		if err := field(fields, name, v); err != nil {
			return err
		}
	}
	w, err := rawTensor("weights", dt, h.Quantized, h.N, h.K)
	if err != nil {
		return err
	}
	rows, err := rawTensor("rows", tensor.F32, h.Unpacked, h.N, h.K)
	if err != nil {
		return err
	}
	rows.bits = true
	f.Inputs, f.Outputs = []Tensor{w}, []Tensor{rows}
	for i, m := range h.Matmul {
		x, err := rawTensor(fmt.Sprintf("x%d", i), tensor.F32, m.X, m.M, h.K)
		if err != nil {
			return err
		}
		y, err := rawTensor(fmt.Sprintf("y%d", i), tensor.F64, m.Y, m.M, h.N)
		if err != nil {
			return err
		}
		y.allow = productAllowance(&x.Data, &rows.Data, h.Activation)
		f.Inputs, f.Outputs = append(f.Inputs, x), append(f.Outputs, y)
	}
	return nil
}

// rawTensor is an operand of little-endian bytes.
func rawTensor(name string, dt tensor.DType, b []byte, shape ...int64) (Tensor, error) {
	t := Tensor{Name: name, key: name, DType: dt.String()}
	x, err := tensor.New(nil, dt, shape...)
	if err == nil {
		err = t.copyBytes(x, b)
	}
	if err != nil {
		return t, errorf(ErrFormat, name, "%v", err)
	}
	return t, nil
}

// readDecode reads the values of all codes of a small float type.
func readDecode(f *File, fields map[string]json.RawMessage) error {
	var dtype string
	var bits []uint32
	if err := first(field(fields, "dtype", &dtype), field(fields, "f32_bits", &bits)); err != nil {
		return err
	}
	f.Type = "decode " + dtype
	f.Outputs = []Tensor{bitsTensor("value", bits)}
	f.Outputs[0].bits = true
	f.routes = codecRoutes(dtype, decodeAll)
	return nil
}

// readEncode reads the codes of many values in a small float type.
func readEncode(f *File, fields map[string]json.RawMessage) error {
	var dtype string
	var bits []uint32
	if err := first(field(fields, "dtype", &dtype), field(fields, "x_f32_bits", &bits)); err != nil {
		return err
	}
	f.Type = "encode " + dtype
	f.Inputs = []Tensor{bitsTensor("x", bits)}
	for _, name := range []string{"code", "code_saturating", "code_round_up", "code_round_down"} {
		var codes []*int32 // null: not specified
		if err := field(fields, name, &codes); err != nil {
			return err
		}
		if codes == nil {
			continue
		}
		if len(codes) != len(bits) {
			return errorf(ErrFormat, name, "%d codes for %d values", len(codes), len(bits))
		}
		t := Tensor{Name: name, key: name, DType: "i32"}
		t.Data, _ = memory(tensor.I32, int64(len(codes)))
		for i, c := range codes {
			v := int32(unspecified)
			if c != nil {
				v = *c
			}
			tensor.Slice[int32](&t.Data)[i] = v
		}
		f.Outputs = append(f.Outputs, t)
	}
	f.routes = codecRoutes(dtype, encodeAll)
	return nil
}

func bitsTensor(name string, bits []uint32) Tensor {
	t := Tensor{Name: name, key: name, DType: "f32"}
	t.Data, _ = memory(tensor.F32, int64(len(bits)))
	for i, b := range bits {
		binary.LittleEndian.PutUint32(tensor.Slice[uint8](&t.Data)[4*i:], b)
	}
	return t
}

// productShares say how far a product of rows x and w may lie from the exact one, as a share of |x||w|, by what the
// format's activations are packed as. Activations of 16-bit weights are not packed here.
var productShares = map[string]float64{"q8_0": 2e-3, "q8_1": 2e-3, "q8_K": 6e-3}

// productAllowance is that distance for each product of x [m,k] with unpacked weights w [n,k].
func productAllowance(x, w *tensor.Tensor, activation string) []float64 {
	share, packed := productShares[activation]
	if !packed {
		share = 1e-6
	}
	norms := func(t *tensor.Tensor) []float64 {
		out := make([]float64, t.Shape[0])
		v := tensor.Slice[float32](t)
		for i := range out {
			for _, e := range v[int64(i)*t.Shape[1]:][:t.Shape[1]] {
				out[i] += float64(e) * float64(e)
			}
			out[i] = math.Sqrt(out[i])
		}
		return out
	}
	var allow []float64
	for _, nx := range norms(x) {
		for _, nw := range norms(w) {
			allow = append(allow, share*nx*nw)
		}
	}
	return allow
}

// blockRoutes serve a weight format: rows looked up, and products.
func blockRoutes(dt tensor.DType) []route {
	switch {
	case !tensor.CanDecode(dt):
		return nil
	case dt.IsBlock():
		return []route{{ops.OpEmbedding, blockRows}, {ops.OpMatmulBTQuant, blockProducts}}
	}
	return []route{{ops.OpEmbedding, blockRows}, {ops.OpMatmulBT, blockProducts}}
}
