package ops

import (
	"reflect"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

func ints32(v ...int32) tensor.Tensor { return tensor.Must(tensor.FromSlice(v, tensor.I32)) }
func ints64(v ...int64) tensor.Tensor { return tensor.Must(tensor.FromSlice(v, tensor.I64)) }

// TestCostOf holds costs against numbers that were worked out by hand.
func TestCostOf(t *testing.T) {
	type bytes = map[string][2]int64 // operand: read, written
	at := func(a any) unsafe.Pointer { return reflect.ValueOf(a).UnsafePointer() }
	for _, c := range []struct {
		name  string
		op    registry.Op
		args  any
		flops float64
		unit  string
		bytes bytes
	}{
		{"matmul of mixed widths", OpMatmul, &MatmulArgs{Out: ten(bf16, 2, 5), A: ten(f32, 2, 3), B: ten(f16, 3, 5)},
			60, UnitF32, bytes{"out": {0, 20}, "a": {24, 0}, "b": {30, 0}}},
		{"matmul_bt of a view on panels", OpMatmulBT, &MatmulBTArgs{Out: ten(f32, 2, 17), A: columnsOf(f32, 2, 3, 100), B: lane16(ten(f16, 17, 3))},
			204, UnitF32, bytes{"out": {0, 136}, "a": {24, 0}, "b": {32 * 3 * 2, 0}}},
		{"matmul_bt of blocks", OpMatmulBT, &MatmulBTArgs{Out: ten(f32, 1, 2), A: ten(f32, 1, 32), B: ten(tensor.Q4_0, 2, 32)},
			128, UnitInt8, bytes{"out": {0, 8}, "a": {128, 0}, "b": {36, 0}}},
		{"q4_0 weights with their scales", OpMatmulBTQuant, &MatmulBTQuantArgs{Out: ten(f32, 4, 32), A: ten(bf16, 4, 64), B: ten(tensor.Q4_0, 32, 64)},
			2 * 4 * 32 * 64, UnitInt8, bytes{"out": {0, 512}, "a": {512, 0}, "b": {32 * 2 * 18, 0}}},
		{"q6_K", OpMatmulBTQuant, &MatmulBTQuantArgs{Out: ten(f32, 1, 3), A: ten(f32, 1, 512), B: ten(tensor.Q6_K, 3, 512)},
			3072, UnitInt8, bytes{"out": {0, 12}, "a": {2048, 0}, "b": {3 * 2 * 210, 0}}},
		{"rms_norm alone", OpRMSNorm, &RMSNormArgs{Out: ten(f32, 2, 5), X: ten(f32, 2, 5)}, 30, UnitF32, bytes{"out": {0, 40}, "x": {40, 0}}},
		{"rms_norm with residual", OpRMSNorm, &RMSNormArgs{Out: ten(bf16, 2, 5), X: ten(f16, 2, 5), Weight: ten(f32, 5), Residual: ten(f32, 2, 5), Gemma: true},
			60, UnitF32, bytes{"out": {0, 20}, "x": {20, 0}, "weight": {20, 0}, "residual": {40, 40}}},
		{"silu_and_mul", OpSiluAndMul, &SiluAndMulArgs{Out: ten(f32, 2, 3), X: ten(f32, 2, 6)}, 30, UnitF32, bytes{"out": {0, 24}, "x": {48, 0}}},
		{"add of a row", OpAdd, &AddArgs{Out: ten(f32, 2, 3), A: ten(f32, 2, 3), B: ten(f32, 3)}, 6, UnitF32, bytes{"out": {0, 24}, "a": {24, 0}, "b": {12, 0}}},
		{"qkv_split", OpQKVSplit, &QKVSplitArgs{QOut: ten(f32, 2, 4), KOut: ten(f32, 2, 1), VOut: ten(f32, 2, 1), QKV: ten(f32, 2, 6)},
			0, UnitF32, bytes{"q_out": {0, 32}, "k_out": {0, 8}, "v_out": {0, 8}, "qkv": {48, 0}}},
		{"softmax", OpSoftmax, &SoftmaxArgs{Out: ten(f32, 2, 3, 4), X: ten(f32, 2, 3, 4), Mask: ten(f16, 3, 4), Sinks: ten(f32, 2), Scale: 1, MaxBias: 8},
			24 * 8, UnitF32, bytes{"out": {0, 96}, "x": {96, 0}, "mask": {24, 0}, "sinks": {8, 0}}},
		{"embedding reads a row once", OpEmbedding, &EmbeddingArgs{Out: ten(f32, 4, 32), Table: ten(tensor.Q8_0, 1000, 32), IDs: ints32(7, 7, 999, 0)},
			0, UnitF32, bytes{"out": {0, 512}, "table": {3 * 34, 0}, "ids": {16, 0}}},
		{"rope_neox leaves the tail", OpRopeNeox, &RopeNeoxArgs{QStates: ten(f32, 3, 2, 8), KStates: ten(f32, 3, 1, 8), Positions: ints64(0, 1, 2), Rope: RopeParams{RotaryDim: 4}},
			6 * (5 + 6*3), UnitF32, bytes{"q_states": {96, 96}, "k_states": {48, 48}, "positions": {24, 0}}},
		{"rope_cos_sin_cache", OpRopeCosSinCache, &RopeCosSinCacheArgs{CosSin: ten(f32, 3, 4), Positions: ints64(0, 1, 2), Rope: RopeParams{RotaryDim: 4}},
			24, UnitF32, bytes{"cos_sin": {0, 48}, "positions": {24, 0}}},
		{"rope_from_cache", OpRopeFromCache, &RopeFromCacheArgs{QStates: ten(bf16, 3, 2, 8), Positions: ints64(5, 5, 2), CosSinCache: ten(bf16, 100, 4), RotaryDim: 4},
			6 * 6 * 2, UnitF32, bytes{"q_states": {48, 48}, "positions": {24, 0}, "cos_sin_cache": {16, 0}}},
		{"attention of a whole square", OpAttention, &AttentionArgs{Out: ten(f32, 3, 4, 2), Query: ten(f32, 3, 4, 8), Key: ten(f32, 5, 2, 8), Value: ten(f32, 5, 2, 2), Scale: 1},
			2 * 15 * 4 * 10, UnitF32, bytes{"out": {0, 96}, "query": {384, 0}, "key": {320, 0}, "value": {80, 0}}},
		{"causal attention after two past keys", OpAttention, &AttentionArgs{Out: ten(f32, 3, 4, 2), Query: ten(f32, 3, 4, 8), Key: ten(f32, 5, 2, 8), Value: ten(f32, 5, 2, 2), Scale: 1, Causal: true},
			2 * (3 + 4 + 5) * 4 * 10, UnitF32, bytes{"out": {0, 96}, "query": {384, 0}, "key": {320, 0}, "value": {80, 0}}},
		{"a window reads part of the keys and of the mask", OpAttention, &AttentionArgs{Out: ten(f32, 2, 1, 4), Query: ten(f32, 2, 1, 4), Key: ten(f32, 10, 1, 4), Value: ten(f32, 10, 1, 4),
			Mask: ten(f16, 1, 2, 10), Scale: 1, Causal: true, Windowed: true, WindowLeft: 2},
			2 * 6 * 8, UnitF32, bytes{"out": {0, 32}, "query": {32, 0}, "key": {4 * 16, 0}, "value": {4 * 16, 0}, "mask": {12, 0}}},
		{"queries before the first key see nothing", OpAttention, &AttentionArgs{Out: ten(f32, 3, 1, 4), Query: ten(f32, 3, 1, 4), Key: ten(f32, 1, 1, 4), Value: ten(f32, 1, 1, 4), Scale: 1, Causal: true},
			2 * 1 * 8, UnitF32, bytes{"out": {0, 48}, "query": {16, 0}, "key": {16, 0}, "value": {16, 0}}},
		// Requests of 1 query on 5 keys (pages of 4: two of them) and 2 on 2; the last row belongs to none.
		{"ragged requests over pages", OpPagedAttention, &PagedAttentionArgs{Out: ten(f32, 4, 4, 32), Query: ten(f32, 4, 4, 32), KCache: ten(tensor.Q8_0, 100, 4, 2, 32), VCache: ten(tensor.Q8_0, 100, 4, 2, 32),
			BlockTable: ten(tensor.I32, 2, 50), SeqLens: ints32(5, 2), QueryStartLoc: ints32(0, 1, 3), Scale: 1, Causal: true},
			4 * (5 + 1 + 2) * 4 * 32, UnitF32, bytes{"out": {0, 3 * 512}, "query": {3 * 512, 0}, "k_cache": {7 * 2 * 34, 0}, "v_cache": {7 * 2 * 34, 0},
				"block_table": {12, 0}, "seq_lens": {8, 0}, "query_start_loc": {12, 0}}},
		{"a window over pages", OpPagedAttention, &PagedAttentionArgs{Out: ten(f32, 1, 1, 4), Query: ten(f32, 1, 1, 4), KCache: ten(f16, 9, 4, 1, 4), VCache: ten(f16, 9, 4, 1, 4),
			BlockTable: ten(tensor.I32, 1, 9), SeqLens: ints32(30), QueryStartLoc: ints32(0, 1), Scale: 1, Causal: true, Windowed: true, WindowLeft: 4},
			4 * 5 * 4, UnitF32, bytes{"out": {0, 16}, "query": {16, 0}, "k_cache": {5 * 8, 0}, "v_cache": {5 * 8, 0},
				"block_table": {8, 0}, "seq_lens": {4, 0}, "query_start_loc": {8, 0}}},
		{"skipped slots", OpReshapeAndCache, &ReshapeAndCacheArgs{K: ten(f32, 3, 2, 32), V: ten(f32, 3, 2, 32), KCache: ten(tensor.Q8_0, 9, 4, 2, 32), VCache: ten(tensor.Q8_0, 9, 4, 2, 32), SlotMapping: ints64(3, -1)},
			0, UnitF32, bytes{"k": {256, 0}, "v": {256, 0}, "k_cache": {0, 68}, "v_cache": {0, 68}, "slot_mapping": {16, 0}}},
		{"a sparse bias", OpApplyLogitBias, &ApplyLogitBiasArgs{Logits: ten(f32, 2, 1000), Rows: ints32(0, 1, 1), Cols: ints32(0, 1, 2), Biases: ten(f32, 3)},
			3, UnitF32, bytes{"logits": {12, 12}, "rows": {12, 0}, "cols": {12, 0}, "biases": {12, 0}}},
		{"a sparse mask", OpApplyTokenMask, &ApplyTokenMaskArgs{Logits: ten(f32, 2, 1000), Rows: ints32(0), Cols: ints32(9)},
			0, UnitF32, bytes{"logits": {0, 4}, "rows": {4, 0}, "cols": {4, 0}}},
		{"a dense mask", OpApplyAllowedTokenIDs, &ApplyAllowedTokenIDsArgs{Logits: ten(f32, 1, 4), Mask: tensor.Must(tensor.FromSlice([]uint8{0, 1, 2, 0}, tensor.U8, 1, 4))},
			0, UnitF32, bytes{"logits": {0, 8}, "mask": {4, 0}}},
		{"top-k", OpApplyTopKTopP, &ApplyTopKTopPArgs{Logits: ten(f32, 2, 10), K: ints32(3, 3)}, 20, UnitF32, bytes{"logits": {80, 80}, "k": {8, 0}}},
		{"no rows", OpRelu, &ReluArgs{Out: ten(f32, 0, 4), X: ten(f32, 0, 4)}, 0, UnitF32, bytes{"out": {}, "x": {}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, byID[c.op].target(at(c.args)).validate(at(c.args), tensor.Device{}))
			got, ok := CostOf(c.op, at(c.args))
			require.True(t, ok)
			require.Equal(t, c.flops, got.FLOPs)
			require.Equal(t, c.unit, got.Unit)
			operands, read, written, touched := bytes{}, int64(0), int64(0), int64(0)
			for _, o := range got.Operands {
				operands[o.Operand] = [2]int64{o.Read, o.Written}
				read, written, touched = read+o.Read, written+o.Written, touched+max(o.Read, o.Written)
			}
			require.Equal(t, c.bytes, operands)
			require.Equal(t, [4]int64{read, written, read + written, touched}, [4]int64{got.Read, got.Written, got.Bytes(), got.Touched()})
		})
	}
}

// TestW37CostOfEveryOp wants a cost of every op of the package: one that computes, or one that says that it only moves.
func TestW37CostOfEveryOp(t *testing.T) {
	require.Len(t, costs, len(all))
	for _, c := range cases() {
		id := c.core.desc.Op
		args := c.fresh()
		if id == OpPagedAttention {
			a := (*PagedAttentionArgs)(args)
			a.SeqLens, a.QueryStartLoc, a.BlockTable = ints32(3), ints32(0, 2), ten(i32, 1, 3)
		}
		cost, ok := CostOf(id, args)
		require.True(t, ok, c.core.name)
		require.Equal(t, cost.Movement, cost.FLOPs == 0, "%s: %v operations", c.core.name, cost.FLOPs)
		require.Positive(t, cost.Bytes(), c.core.name)
		present := 0
		for _, o := range c.core.spec().operands {
			if !o.at(args).Present() {
				continue
			}
			require.Equal(t, o.Name, cost.Operands[present].Operand)
			if o.Role == registry.In {
				require.Zero(t, cost.Operands[present].Written, "%s writes its input %s", c.core.name, o.Name)
			}
			present++
		}
		require.Len(t, cost.Operands, present, c.core.name)
	}
}

func TestCostOfHidden(t *testing.T) {
	_, ok := CostOf(0, nil)
	require.False(t, ok)
	_, ok = CostOf(9, unsafe.Pointer(&ReluArgs{}))
	require.False(t, ok, "a hole in the catalogue")
	ids := ints32(1)
	ids.Host, ids.Buffer = nil, 1
	_, ok = CostOf(OpEmbedding, unsafe.Pointer(&EmbeddingArgs{Out: ten(tensor.F32, 1, 4), Table: ten(tensor.F32, 2, 4), IDs: ids}))
	require.False(t, ok, "ids that the CPU cannot see")
	bad := PagedAttentionArgs{Out: ten(tensor.F32, 2, 1, 4), Query: ten(tensor.F32, 2, 1, 4), KCache: ten(tensor.F32, 2, 4, 1, 4), VCache: ten(tensor.F32, 2, 4, 1, 4),
		BlockTable: ten(tensor.I32, 3, 2), SeqLens: ints32(-1, 5, 1<<30), QueryStartLoc: ints32(0, 1, -7, 2), Scale: 1}
	c, ok := CostOf(OpPagedAttention, unsafe.Pointer(&bad))
	require.True(t, ok)
	require.Zero(t, c.FLOPs)
}
