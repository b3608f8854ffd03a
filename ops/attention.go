package ops

import (
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// ScoresStage says which numbers of an attention its optional output holds.
type ScoresStage uint8

// Stages of a score, in the order in which they follow each other.
const (
	ScoresScaled  ScoresStage = iota // scale·q·k
	ScoresCapped                     // after the soft-cap
	ScoresMasked                     // after the mask; -inf for keys that the query does not see
	ScoresWeights                    // after the softmax; 0 for keys that the query does not see
	numScoresStages
)

// AttentionArgs is the record of Attention: dense attention of Tq query tokens over Tk key tokens. Query head h uses
// key/value head h/(Hq/Hk). The logit of query i and key j is scale·q·k, then cap·tanh(logit/cap), then + mask. Query i
// stands at position p = Tk - Tq + i (past keys come first), or at QueryOffset + i when TopLeft; it sees keys j <= p when
// Causal, and only
// p-WindowLeft <= j <= p+WindowRight when Windowed. Sinks[h] is one more logit without a value. A row that sees no key
// is zero.
type AttentionArgs struct {
	registry.Header
	Out           tensor.Tensor `op:"out" shape:"Tq,Hq,Dv" dtype:"outfloat"`
	Query         tensor.Tensor `op:"in" shape:"Tq,Hq,D" dtype:"float"`
	Key           tensor.Tensor `op:"in" shape:"Tk,Hk,D" dtype:"like query"`
	Value         tensor.Tensor `op:"in" shape:"Tk,Hk,Dv" dtype:"like query"`
	Mask          tensor.Tensor `op:"in,opt" shape:"Tq,Tk|Hq,Tq,Tk" dtype:"float"` // -inf hides a key
	Sinks         tensor.Tensor `op:"in,opt" shape:"Hq" dtype:"f32"`
	Scores        tensor.Tensor `op:"out,opt" shape:"Tq,Hq,Tk" dtype:"outfloat"` // what ScoresAt says, of every query and key
	Scale         float32       // > 0, finite
	LogitsSoftCap float32       // >= 0, finite; 0 is none
	WindowLeft    int32         // >= 0, and 0 unless Windowed
	WindowRight   int32         // >= 0, and 0 unless Windowed
	QueryOffset   int32         // position of query 0 when TopLeft; >= 0, and 0 unless TopLeft
	Causal        bool
	Windowed      bool
	TopLeft       bool        // positions are counted from the first key, not back from the last
	ScoresAt      ScoresStage // ScoresScaled unless Scores is there
}

// PagedAttentionArgs is the record of PagedAttention: R requests whose query tokens lie one after another and whose keys
// and values lie in pages. Request r owns query rows query_start_loc[r] .. query_start_loc[r+1]; key j of it is row
// j%block_size of page block_table[r, j/block_size]; seq_lens[r] counts the new tokens too, whose keys are already
// written. Positions, logits, sinks, Causal and Windowed are as in AttentionArgs with Tk = seq_lens[r]. Rows that see no
// key, and rows at or beyond query_start_loc[R], are not written.
type PagedAttentionArgs struct {
	registry.Header
	Out           tensor.Tensor `op:"out" shape:"Tq,Hq,D" dtype:"outfloat"`
	Query         tensor.Tensor `op:"in" shape:"Tq,Hq,D" dtype:"float"`
	KCache        tensor.Tensor `op:"in" shape:"NB,BS,Hk,D" dtype:"float q8_0" layout:"pages"`
	VCache        tensor.Tensor `op:"in" shape:"NB,BS,Hk,D" dtype:"like k_cache" layout:"pages"`
	BlockTable    tensor.Tensor `op:"in" shape:"R,MB" dtype:"i32" layout:"strided"`
	SeqLens       tensor.Tensor `op:"in" shape:"R" dtype:"i32"`
	QueryStartLoc tensor.Tensor `op:"in" shape:"R+1" dtype:"i32"`
	Sinks         tensor.Tensor `op:"in,opt" shape:"Hq" dtype:"f32"`
	Scale         float32       // > 0, finite
	LogitsSoftCap float32       // >= 0, finite; 0 is none
	WindowLeft    int32         // >= 0, and 0 unless Windowed
	WindowRight   int32         // >= 0, and 0 unless Windowed
	MaxSeqLen     int32         // hint: upper bound of seq_lens, 0 is unknown
	MaxQueryLen   int32         // hint: upper bound of a request's query rows, 0 is unknown
	Causal        bool
	Windowed      bool
}

// ReshapeAndCacheArgs is the record of ReshapeAndCache: row t of k and v, for t < S and slot_mapping[t] = s >= 0, is written
// to row s%block_size of page s/block_size of the caches, converted to their dtype. A negative slot skips the token; one
// beyond the cache is an ErrValue.
type ReshapeAndCacheArgs struct {
	registry.Header
	K           tensor.Tensor `op:"in" shape:"Tk,Hk,D" dtype:"float" layout:"inner-rows"`
	V           tensor.Tensor `op:"in" shape:"Tk,Hk,D" dtype:"like k" layout:"inner-rows"`
	KCache      tensor.Tensor `op:"inout" shape:"NB,BS,Hk,D" dtype:"float q8_0" layout:"pages"`
	VCache      tensor.Tensor `op:"inout" shape:"NB,BS,Hk,D" dtype:"like k_cache" layout:"pages"`
	SlotMapping tensor.Tensor `op:"in" shape:"S" dtype:"i64"` // S <= Tk
}

// Attention and the cache that its paged form reads.
var (
	Attention = define(OpAttention, "attention", "attention", "dense",
		"dense attention of packed queries over packed keys",
		func(a *AttentionArgs) *OpError {
			if !a.TopLeft && a.QueryOffset != 0 {
				return bad(ErrAttr, "query_offset", "%d without top_left", a.QueryOffset)
			}
			if a.ScoresAt >= numScoresStages || a.ScoresAt != 0 && !a.Scores.Present() {
				return bad(ErrAttr, "scores_at", "%d is no stage, or there are no scores", a.ScoresAt)
			}
			return first(headGroups(a.Query.Shape[1], a.Key.Shape[1], "key"), notNegativeInt("query_offset", a.QueryOffset),
				logits(a.Scale, a.LogitsSoftCap, a.Windowed, a.WindowLeft, a.WindowRight))
		})
	PagedAttention = define(OpPagedAttention, "paged_attention", "attention", "paged_varlen",
		"attention of requests of any length over a paged cache",
		func(a *PagedAttentionArgs) *OpError {
			if a.SeqLens.Shape[0] == 0 {
				return bad(ErrShape, "seq_lens", "no request")
			}
			if a.KCache.Shape[1] == 0 {
				return bad(ErrShape, "k_cache", "pages of no rows")
			}
			return first(headGroups(a.Query.Shape[1], a.KCache.Shape[2], "k_cache"),
				logits(a.Scale, a.LogitsSoftCap, a.Windowed, a.WindowLeft, a.WindowRight),
				notNegativeInt("max_seq_len", a.MaxSeqLen), notNegativeInt("max_query_len", a.MaxQueryLen))
		})
	ReshapeAndCache = define(OpReshapeAndCache, "reshape_and_cache", "kv_cache", "kv_write",
		"new key and value rows written to the pages that their slots name",
		func(a *ReshapeAndCacheArgs) *OpError {
			if s := a.SlotMapping.Shape[0]; s > a.K.Shape[0] {
				return bad(ErrShape, "slot_mapping", "%d slots for %d tokens", s, a.K.Shape[0])
			} else if s > 0 && a.KCache.Shape[1] == 0 {
				return bad(ErrShape, "k_cache", "pages of no rows")
			}
			return nil
		})
)

// headGroups wants the query heads to be a positive multiple of the key heads.
func headGroups(hq, hk int64, key string) *OpError {
	if hq == 0 || hk == 0 || hq%hk != 0 {
		return bad(ErrShape, key, "%d query heads are not a positive multiple of %d", hq, hk)
	}
	return nil
}

// logits checks the attributes that shape the logits of both attention ops.
func logits(scale, softCap float32, windowed bool, left, right int32) *OpError {
	if !windowed && (left != 0 || right != 0) {
		return bad(ErrAttr, "windowed", "false, but the window is (%d,%d)", left, right)
	}
	return first(positive("scale", scale), notNegative("logits_soft_cap", softCap),
		notNegativeInt("window_left", left), notNegativeInt("window_right", right))
}
