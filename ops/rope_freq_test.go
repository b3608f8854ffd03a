package ops

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// conformance returns the files of the shared expected results that match pattern, or skips.
func conformance(t *testing.T, pattern string, least int) []string {
	dir := os.Getenv("OPMUX_CONFORMANCE")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared", "conformance")
	}
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no conformance data at %s: set OPMUX_CONFORMANCE to run this test", dir)
	}
	files, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(pattern)))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), least, pattern)
	return files
}

func readJSON(t *testing.T, file string, v any) {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, v), file)
}

// ropeParams is how configuration files of models and the conformance files write a rope.
type ropeParams struct {
	Type          string    `json:"rope_type"`
	Theta         float32   `json:"rope_theta"`
	Dim           int32     `json:"rope_dim"`
	Factor        float32   `json:"factor"`
	Alpha         float32   `json:"alpha"`
	Low           float32   `json:"low_freq_factor"`
	High          float32   `json:"high_freq_factor"`
	Context       int32     `json:"original_max_position_embeddings"`
	BetaFast      float32   `json:"beta_fast"`
	BetaSlow      float32   `json:"beta_slow"`
	Ext           float32   `json:"extrapolation_factor"`
	AttnFactor    *float64  `json:"attn_factor"`
	ApplyScaling  *bool     `json:"apply_yarn_scaling"`
	Truncate      *bool     `json:"truncate"`
	Short         []float32 `json:"short_factor"`
	Long          []float32 `json:"long_factor"`
	ShortMscale   float32   `json:"short_mscale"`
	LongMscale    float32   `json:"long_mscale"`
	SeqLen        int32     `json:"seq_len"`
	MropeSections []int32   `json:"mrope_section"`
}

// params translates to the record's attributes for a model whose context is maxPos.
func (c *ropeParams) params(maxPos int32) RopeParams {
	p := RopeParams{Base: c.Theta, RotaryDim: c.Dim, Factor: c.Factor, OrigContext: c.Context}
	if p.OrigContext == 0 {
		p.OrigContext = maxPos
	}
	switch c.Type {
	case "llama3":
		p.Scaling, p.LowFreq, p.HighFreq = RopeLlama3, c.Low, c.High
	case "yarn":
		p.Scaling, p.BetaFast, p.BetaSlow, p.ExtFactor = RopeYarn, c.BetaFast, c.BetaSlow, c.Ext
		p.NoTruncate = c.Truncate != nil && !*c.Truncate
		attn := 1.0
		if c.AttnFactor != nil {
			attn = *c.AttnFactor
		}
		if c.ApplyScaling == nil || *c.ApplyScaling {
			attn = YarnAttnScale(float64(c.Factor), attn, 1, 0)
		}
		p.AttnScale = float32(attn)
	case "dynamic":
		p.Scaling, p.SeqLen = RopeDynamicNTK, max(c.SeqLen, int32(float32(maxPos)*c.Factor))
		if c.SeqLen > 0 {
			p.SeqLen = c.SeqLen
		}
		if c.Alpha != 0 {
			p.Scaling, p.Factor = RopeDynamicAlpha, c.Alpha
		}
	case "longrope":
		p.Scaling = RopeLongRope
	}
	return p
}

func invFreq(p *RopeParams, short, long []float32) []float64 {
	f := make([]float64, p.RotaryDim/2)
	p.InvFreq(f, short, long)
	return f
}

// TestInvFreqAgainstTransformers compares frequencies that a public test suite hard-codes.
func TestInvFreqAgainstTransformers(t *testing.T) {
	n := 0
	for _, file := range conformance(t, "semantics/*.json", 50) {
		var c struct {
			Op     string
			Params ropeParams
			Inputs struct {
				Dim    int32   `json:"head_dim"`
				Theta  float32 `json:"rope_theta"`
				MaxPos int32   `json:"max_position_embeddings"`
			}
			Expected struct {
				InvFreq []float64 `json:"inv_freq"`
				Scale   float64   `json:"attention_scale"`
			}
			Tolerance struct{ Rtol float64 }
		}
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		if json.Unmarshal(b, &c) != nil || c.Op != "rope_inv_freq" && c.Op != "rope_attention_factor" {
			continue // of other ops
		}
		n++
		c.Params.Dim, c.Params.Theta = c.Inputs.Dim, c.Inputs.Theta
		p := c.Params.params(c.Inputs.MaxPos)
		scale := p.Scale()
		if c.Params.Type == "longrope" {
			scale = LongRopeAttnScale(float64(p.Factor), float64(p.OrigContext))
		}
		require.InEpsilon(t, c.Expected.Scale, scale, 1e-6, file)
		if c.Op == "rope_inv_freq" {
			got := invFreq(&p, nil, nil)
			require.Len(t, got, len(c.Expected.InvFreq))
			for i, want := range c.Expected.InvFreq {
				require.InEpsilon(t, want, got[i], c.Tolerance.Rtol, "%s pair %d", file, i)
			}
		}
	}
	require.GreaterOrEqual(t, n, 7)
}

// TestInvFreqAgainstVLLM compares whole tables of cosines and sines that vLLM computed for each scaling.
func TestInvFreqAgainstVLLM(t *testing.T) {
	for _, file := range conformance(t, "vllm/long_rope_*.json", 10) {
		var c struct {
			Attributes struct {
				DType  string
				MaxPos int32      `json:"max_position"`
				Rope   ropeParams `json:"rope_parameters"`
			}
			Outputs []struct {
				Name  string
				Shape []int
				Data  []float64
			}
		}
		readJSON(t, file, &c)
		a, table := &c.Attributes, c.Outputs[0]
		require.Equal(t, "cos_sin_cache", table.Name)
		tol := 2e-5 // f32 angles of positions up to 512
		if a.DType == "bf16" {
			tol = 8e-3 // the products of rounded cosines are rounded again
		}
		pairs, row := table.Shape[1]/2, 0
		check := func(p RopeParams, rows int) {
			freq := invFreq(&p, a.Rope.Short, a.Rope.Long)
			for pos := range rows {
				for i, f := range freq {
					angle := float64(pos) * f
					want := table.Data[row*2*pairs:]
					require.InDelta(t, want[i], math.Cos(angle)*p.Scale(), tol, "%s row %d pair %d", file, row, i)
					require.InDelta(t, want[pairs+i], math.Sin(angle)*p.Scale(), tol, "%s row %d pair %d", file, row, i)
				}
				row++
			}
		}
		p := a.Rope.params(a.MaxPos)
		if p.Scaling == RopeLongRope { // the table of the short factors, then that of the long ones
			p.SeqLen, p.AttnScale = p.OrigContext, a.Rope.ShortMscale
			check(p, int(p.OrigContext))
			p.SeqLen, p.AttnScale = a.MaxPos, a.Rope.LongMscale
			check(p, int(a.MaxPos))
		} else {
			if a.Rope.MropeSections != nil { // vLLM's class for these takes four times the context that it is given
				p.OrigContext *= 4
			}
			check(p, table.Shape[0])
		}
		require.Equal(t, table.Shape[0], row, file)
	}
}

// TestInvFreqGolden holds the vectors of the catalogue's appendix and the properties of each rule.
func TestInvFreqGolden(t *testing.T) {
	llama := RopeParams{Base: 500000, RotaryDim: 64, Scaling: RopeLlama3, Factor: 8, LowFreq: 1, HighFreq: 4, OrigContext: 8192}
	got := invFreq(&llama, nil, nil)
	for i, want := range map[int]float64{14: 0.00321144599475, 15: 0.00137189356776, 16: 0.000524846160993, 17: 0.000178507812768, 18: 7.78465527393e-05} {
		require.InEpsilon(t, want, got[i], 1e-11, i)
	}
	plain := RopeParams{RotaryDim: 4}
	got = invFreq(&plain, nil, nil)
	for i, want := range [][2]uint32{{0xbf7d7026, 0x3e1081c3}, {0x3f7fe283, 0x3cf5b920}} {
		require.Equal(t, want[0], math.Float32bits(float32(math.Cos(3*got[i]))))
		require.Equal(t, want[1], math.Float32bits(float32(math.Sin(3*got[i]))))
	}
	require.Equal(t, []float64{1, 0.01}, got)
	require.Equal(t, []float64{0.5, 0.0025}, invFreq(&plain, []float32{2, 4}, nil))

	linear := RopeParams{RotaryDim: 4, Scaling: RopeLinear, Factor: 4}
	require.Equal(t, []float64{0.25, 0.0025}, invFreq(&linear, nil, nil))

	// Inside the trained context dynamic scaling with factor 1 changes nothing, and the first pair never changes.
	ntk := RopeParams{RotaryDim: 8, Scaling: RopeDynamicNTK, Factor: 1, OrigContext: 100}
	require.InDeltaSlice(t, invFreq(&RopeParams{RotaryDim: 8}, nil, nil), invFreq(&ntk, nil, nil), 1e-15)
	ntk.Factor, ntk.SeqLen = 4, 1000
	require.Equal(t, 1.0, invFreq(&ntk, nil, nil)[0])
	// The last pair of a rule by alpha turns alpha times slower.
	alpha := RopeParams{RotaryDim: 8, Scaling: RopeDynamicAlpha, Factor: 3}
	require.InEpsilon(t, invFreq(&RopeParams{RotaryDim: 8}, nil, nil)[3]/3, invFreq(&alpha, nil, nil)[3], 1e-12)

	long := RopeParams{RotaryDim: 4, Scaling: RopeLongRope, OrigContext: 32, SeqLen: 32}
	require.Equal(t, []float64{0.5, 0.01}, invFreq(&long, []float32{2, 1}, []float32{4, 2}))
	long.SeqLen = 33
	require.Equal(t, []float64{0.25, 0.005}, invFreq(&long, []float32{2, 1}, []float32{4, 2}))

	// Yarn keeps fast pairs and divides slow ones; without extrapolation it is linear.
	yarn := RopeParams{RotaryDim: 128, Scaling: RopeYarn, Factor: 10, OrigContext: 2048}
	base, scaled := invFreq(&RopeParams{RotaryDim: 128}, nil, nil), invFreq(&yarn, nil, nil)
	require.Equal(t, base[0], scaled[0])
	require.InEpsilon(t, base[63]/10, scaled[63], 1e-12)
	for i := range scaled {
		require.LessOrEqual(t, scaled[i], base[i])
		require.GreaterOrEqual(t, scaled[i], base[i]/10*(1-1e-15))
	}

	require.Equal(t, 1.0, YarnMscale(0.5, 1))
	require.Equal(t, 1.0, YarnAttnScale(40, 1, 0.7, 0.7))
	require.InDelta(t, 0.8*(1+0.1*math.Log(40)), YarnAttnScale(40, 0.8, 1, 0), 1e-15)
	require.Equal(t, 1.0, LongRopeAttnScale(1, 4096))
	for s := RopeNone; s.Valid(); s++ {
		require.NotContains(t, s.String(), "(")
	}
	require.Equal(t, "scaling("+strconv.Itoa(int(numRopeScalings))+")", numRopeScalings.String())
}
