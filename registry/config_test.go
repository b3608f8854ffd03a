package registry

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// traited is a registry with an op of a schema, an operator that it belongs to, and kernels a, b and vt-native.
func traited(t testing.TB, o Options) (*Registry, Op) {
	r := New(o)
	op, err := r.Define(Descriptor{Name: "probe", Family: "fam", Mode: "mode", Record: typeOf[probeArgs](), Roles: []string{"x"},
		Operators: []OperatorAlias{{Name: "wide.op", Roles: map[string]string{"a": "x"}}},
		Traits: []TraitDef{{Name: "m", Aliases: []string{"tokens"}, Type: TraitInt, Dynamic: true}, {Name: "causal", Type: TraitBool},
			{Name: "kind", Type: TraitString}, {Name: "acc", Type: TraitDType}},
		Operands: []Operand{{Name: "x", Offset: unsafe.Offsetof(probeArgs{}.X)}}})
	require.NoError(t, err)
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3})
	add(t, r, op, tensor.CPU, OpProvider{Name: "b", Priority: 2})
	native(t, r, op, tensor.CPU)
	return r, op
}

func loaded(t testing.TB, text string) *Config {
	c, err := LoadConfig(strings.NewReader(text), "opmux.json")
	require.NoError(t, err)
	return c
}

// W15: the configuration file exists, and the example of its documentation, with names that are there, is what it does.
func TestW15ConfigFile(t *testing.T) {
	r, op := traited(t, Options{})
	require.Equal(t, ConfigStatus{State: "none"}, r.ConfigStatus())
	require.NoError(t, r.SetConfig(loaded(t, `{ "version": 1,
  "defaults": { "objective": "default", "strategy": "heuristic", "strict": false },
  "rules": [
    { "match": { "op": "wide.op", "vendor": "cpu", "signature": { "a": "bf16" }, "traits": { "m": "<=16" } },
      "use": "kernel:b_probe", "exclude": ["solution:vt-native"], "objective": "latency", "on_error": "warn" } ],
  "tuning_db": "tuned.json" }`)))
	pick := func(m int64, x tensor.Format) string {
		s, err := r.Select(Request{Operator: "probe", Signature: tensor.Sig(map[string]tensor.Format{"x": x}), Traits: map[string]TraitValue{"m": IntTrait(m)}})
		require.NoError(t, err)
		return s.Provider()
	}
	bf16 := tensor.Dense(tensor.BF16)
	require.Equal(t, "b", pick(1, bf16))
	require.Equal(t, "b", pick(16, bf16))
	require.Equal(t, "a", pick(17, bf16), "the region of the decision ends where the rule says")
	require.Equal(t, "a", pick(1, tensor.Dense(tensor.F32)))
	d := r.Decide(Request{Operator: "wide.op", Signature: tensor.Sig(map[string]tensor.Format{"a": bf16}), Traits: map[string]TraitValue{"tokens": IntTrait(3)}})
	require.Equal(t, "config opmux.json:4", d.From)
	require.Equal(t, "kernel:b_probe", d.Override)
	require.Equal(t, "latency", d.Objective)
	require.Equal(t, "a", launched(t, r.NewQueue(nil), op), "launches know no formats beforehand")

	st := r.ConfigStatus()
	require.Equal(t, "active", st.State)
	require.Equal(t, []string{`line 4: {"op":"wide.op","vendor":"cpu","signature":{"a":"bf16"},"traits":{"m":"<=16"}}: use kernel:b_probe; exclude solution:vt-native; objective latency`}, st.Rules)
	require.Equal(t, []string{"tuning_db: read, but nothing in this version uses it"}, st.Notes)
	require.Equal(t, "tuned.json", st.TuningDB)
	require.NoError(t, r.SetConfig(nil))
	require.Equal(t, "a", pick(1, bf16))
	require.Equal(t, "none", r.ConfigStatus().State)
}

// Rules for every call of an op: the first that holds wins for each key, and what is stronger than the file beats it.
func TestConfigChains(t *testing.T) {
	config := `{"version": 1, "rules": [
		{"match": {"vendor": "nvidia"}, "use": "b"},
		{"match": {"op": "fam.mode"}, "use": "vt-native"},
		{"match": {"op": "fam.mode"}, "use": "b", "exclude": ["a"]},
		{"exclude": ["b"]}]}`
	for _, c := range []struct {
		o    Options
		want []string
	}{
		{Options{}, []string{NativeProviderName, "b"}},
		{Options{Override: map[string]string{"probe": "b"}}, []string{"b", NativeProviderName}},
		{Options{Override: map[string]string{"probe": "a"}}, []string{"a", "b", NativeProviderName}}, // named by a stronger place: the exclusion does not hold for it
		{Options{Override: map[string]string{"probe": "!b"}}, []string{NativeProviderName}},
		{Options{Force: map[string]string{"probe": "a"}}, []string{"a"}},
	} {
		r, op := traited(t, c.o)
		before := r.Snapshot().Generation
		require.NoError(t, r.SetConfig(loaded(t, config)))
		require.Greater(t, r.Snapshot().Generation, before)
		got := providers(r.Explain(op, cpu0))
		require.Equal(t, c.want, got, c.o)
	}
	r, op := traited(t, Options{})
	require.NoError(t, r.SetConfig(loaded(t, `{"version": 1, "defaults": {"strict": true, "objective": "determinism"}, "rules": [{"exclude": ["a"]}]}`)))
	require.True(t, r.Strict())
	require.Equal(t, []string{"b", NativeProviderName}, providers(r.Explain(op, cpu0)))
	require.Contains(t, r.Explain(op, cpu0).String(), "a_probe  provider a, tier native, priority 3, overridden (excluded by config opmux.json:1)")
	require.Equal(t, "determinism", r.Decide(Request{Operator: "probe"}).Objective)
	require.NoError(t, r.SetConfig(nil))
	require.False(t, r.Strict())

	// arch
	r, op = probe(t, Options{})
	add(t, r, op, tensor.CUDA, OpProvider{Name: "a", Priority: 3})
	add(t, r, op, tensor.CUDA, OpProvider{Name: "b", Priority: 2})
	for version, want := range map[string]string{"8.9": "a", "9.0": "b", "9.5": "b", "10.0": "a"} {
		arch, err := device.ParseArch(device.NVIDIA, version)
		require.NoError(t, err)
		caps := probed(arch.Major)
		caps.Platform = &device.Platform{Vendor: device.NVIDIA, Kind: tensor.CUDA, Name: "card", Arch: arch}
		require.NoError(t, r.SetDeviceProviderCaps(cuda0, caps))
		require.NoError(t, r.SetConfig(loaded(t, `{"version": 1, "rules": [{"match": {"vendor": "nvidia", "arch": ">=9.0 <10.0"}, "use": "b"}]}`)))
		require.Equal(t, want, providers(r.Explain(op, cuda0))[0], version)
	}
}

// Conditions on traits, by type.
func TestConfigTraits(t *testing.T) {
	r, _ := traited(t, Options{})
	for cond, want := range map[string]map[string]bool{
		`"m": 4`:                 {"m=4": true, "m=5": false},
		`"m": "4"`:               {"m=4": true, "m=5": false},
		`"tokens": "!=4"`:        {"m=4": false, "m=5": true},
		`"m": ">=4 <8"`:          {"m=3": false, "m=4": true, "m=7": true, "m=8": false},
		`"m": ">4"`:              {"m=4": false, "m=5": true},
		`"m": [1, "=2", ">9"]`:   {"m=1": true, "m=2": true, "m=3": false, "m=10": true},
		`"causal": true`:         {"causal=true": true, "causal=false": false, "m=1": false},
		`"kind": "a b"`:          {"kind=a b": true, "kind=a": false},
		`"kind": "!=x"`:          {"kind=y": true, "kind=x": false},
		`"acc": ["f32", "bf16"]`: {"acc=f32": true, "acc=f16": false},
	} {
		require.NoError(t, r.SetConfig(loaded(t, `{"version": 1, "rules": [{"match": {"op": "probe", "traits": {`+cond+`}}, "use": "b"}]}`)))
		for given, holds := range want {
			name, v, _ := strings.Cut(given, "=")
			typ := map[string]TraitType{"m": TraitInt, "causal": TraitBool, "kind": TraitString, "acc": TraitDType}[name]
			x, err := ParseTrait(typ, v)
			require.NoError(t, err)
			s, err := r.Select(Request{Operator: "probe", Traits: map[string]TraitValue{name: x}})
			require.NoError(t, err)
			require.Equal(t, holds, s.Provider() == "b", "%s with %s", cond, given)
		}
	}
}

func TestConfigFormats(t *testing.T) {
	r, _ := traited(t, Options{})
	q4, bf16 := tensor.Dense(tensor.Q4_0), tensor.Dense(tensor.BF16)
	for pattern, want := range map[string][2]bool{
		"bf16": {true, false}, "dense[bf16]": {true, false}, "dense": {true, false}, "dense[f16]": {false, false},
		"dense[storage=bf16]": {true, false}, "ggml": {false, true}, "q4_0": {false, true}, "ggml[q4_0]": {false, true}, "ggml[q8_0]": {false, false},
	} {
		require.NoError(t, r.SetConfig(loaded(t, fmt.Sprintf(`{"version": 1, "rules": [{"match": {"op": "probe", "signature": {"x": %q}}, "use": "b"}]}`, pattern))))
		for i, f := range []tensor.Format{bf16, q4} {
			s, err := r.Select(Request{Operator: "probe", Signature: tensor.Sig(map[string]tensor.Format{"x": f})})
			require.NoError(t, err)
			require.Equal(t, want[i], s.Provider() == "b", "%s with %v", pattern, f)
		}
	}
}

// Every mistake is told with its place; names that do not exist with those that are near.
func TestConfigErrors(t *testing.T) {
	rules := func(s string) string { return "{\"version\": 1, \"rules\": [\n  " + s + "]}" }
	for text, want := range map[string]string{
		``:                                 `c.json:1:1: the text ends too early`,
		`{"version": 1`:                    `c.json:1:14: the text ends too early`,
		`[]`:                               `c.json:1:1: not an object`,
		"{\"version\": 1}\n x":             `c.json:2:2: text after the end`,
		`{}`:                               `c.json:1:1: version: missing`,
		`{"version": 2}`:                   `c.json:1:13: version: this program reads version 1`,
		`{"version": "1"}`:                 `version: this program reads version 1`,
		`{"version": 1, "version": 1}`:     `c.json:1:16: "version" stands here twice`,
		`{"version": 1, "rulez": []}`:      `c.json:1:16: rulez: unknown key; nearest: rules`,
		`{"version": 1,, }`:                `c.json:1:15: invalid character ','`,
		`{"version": 1, "rules": {}}`:      `rules: not a list`,
		`{"version": 1, "quarantine": ""}`: `quarantine: no file name`,
		`{"version": 1, "verdicts": 7}`:    `verdicts: not a string`,
		`{"version": 1, "defaults": {"objective": "fast"}}`:    `defaults.objective: objective "fast" is not one of default latency`,
		`{"version": 1, "defaults": {"strategy": "autotune"}}`: `defaults.strategy: autotune cannot be honoured`,
		`{"version": 1, "defaults": {"strategy": "guess"}}`:    `"guess" is not heuristic or autotune`,
		`{"version": 1, "defaults": {"strict": "yes"}}`:        `defaults.strict: not true or false`,
		rules(`7`):                                                          `c.json:2:3: rules[0]: not an object`,
		rules(`{"match": {"opp": "probe"}}`):                                `c.json:2:14: rules[0].match.opp: unknown key; nearest: op`,
		rules(`{"use": "kernel:"}`):                                         `c.json:2:11: rules[0].use: target "kernel:"`,
		rules(`{"use": "nobody"}`):                                          `c.json:2:11: rules[0].use: "nobody": unknown name`,
		rules(`{"use": "a_prob"}`):                                          `nearest: a_probe`,
		rules(`{"match": {"op": "prob"}}`):                                  `c.json:2:20: rules[0].match.op: "prob": unknown name; nearest: probe`,
		rules(`{"exclude": ["a", "z_probe"]}`):                              `c.json:2:21: rules[0].exclude[1]: "z_probe": unknown name; nearest: a_probe, b_probe`,
		rules(`{"exclude": ["!a"]}`):                                        `rules[0].exclude[0]: "!a" in a list of exclusions`,
		rules(`{"objective": 3}`):                                           `rules[0].objective: not a string`,
		rules(`{"on_error": "ignore"}`):                                     `"ignore" is not fail or warn`,
		rules(`{"match": {"vendor": "nvdia"}}`):                             `rules[0].match.vendor: device: requirement: vendors: "nvdia" is not one of`,
		rules(`{"match": {"arch": ">=9.0"}}`):                               `c.json:2:22: rules[0].match.arch: needs a vendor`,
		rules(`{"match": {"arch": "~9", "vendor": "nvidia"}}`):              `"~9" is not a comparison with a version like 9.0`,
		rules(`{"match": {"traits": {"m": 1}}}`):                            `rules[0].match: formats and traits need an op`,
		rules(`{"match": {"op": "probe", "traits": {"mm": 1}}}`):            `rules[0].match.traits.mm: "mm": unknown name; nearest: m`,
		rules(`{"match": {"op": "probe", "traits": {"m": "many"}}}`):        `rules[0].match.traits.m: trait value "many" is no int`,
		rules(`{"match": {"op": "probe", "traits": {"m": {}}}}`):            `not a value, a comparison or a list of them`,
		rules(`{"match": {"op": "probe", "traits": {"m": [[1]]}}}`):         `not a value, a comparison or a list of them`,
		rules(`{"match": {"op": "probe", "traits": {"kind": ">x"}}}`):       `a string has no order`,
		rules(`{"match": {"op": "probe", "signature": {"y": "bf16"}}}`):     `rules[0].match.signature.y: "y": unknown name`,
		rules(`{"match": {"op": "probe", "signature": {"x": "bf17"}}}`):     `"bf17" is no dtype and no format`,
		rules(`{"match": {"op": "probe", "signature": {"x": "dense[q]"}}}`): `rules[0].match.signature.x:`,
		strings.Repeat(`{"version":`, 30):                                   `nested more than 16 deep`,
		rules(strings.Repeat("{},", 2000) + "{}"):                           `rules: 2001 entries, at most 1000 are read`,
		`{"version": 1, "x": "` + strings.Repeat("y", 1<<20) + `"}`:         `more than 1048576 bytes`,
		"{\"version\": 1,\n\t\"défauts\": {}, \"zz\": 3}":                   `c.json:2:17: zz: unknown key`,
	} {
		r, op := traited(t, Options{})
		require.NoError(t, r.SetConfig(loaded(t, `{"version": 1, "rules": [{"use": "b"}]}`)))
		c, err := LoadConfig(strings.NewReader(text), "c.json")
		if err == nil {
			err = r.SetConfig(c)
		}
		var e *ConfigError
		require.ErrorAs(t, err, &e, clip(text))
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, want)
		require.Less(t, len(err.Error()), 4000)
		require.Equal(t, "b", providers(r.Explain(op, cpu0))[0], "the configuration before stays")
	}
	_, err := LoadConfig(strings.NewReader(`{"version": 1, "a": 1, "b": 2}`), "c.json")
	require.ErrorContains(t, err, "a: unknown key")
	require.ErrorContains(t, err, "b: unknown key")

	// on_error: warn leaves the rule out.
	r, op := traited(t, Options{})
	require.NoError(t, r.SetConfig(loaded(t, rules(`{"use": "nobody", "on_error": "warn"}, {"use": "b"}`))))
	require.Equal(t, "b", providers(r.Explain(op, cpu0))[0])
	require.Len(t, r.ConfigStatus().Rules, 1)
	require.Equal(t, []string{`opmux.json:2:11: rules[0].use: "nobody": unknown name; nearest: b: the rule is left out`}, r.ConfigStatus().Notes)
}

// The file that the options name is read at the first compile. A broken or stale one stops nothing: a warning, and the
// status says so.
func TestConfigFromOptions(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, []byte(text), 0o600))
		return p
	}
	good := write("good.json", `{"version": 1, "rules": [{"use": "b"}, {"use": "gone", "on_error": "warn"}]}`)
	r, op := traited(t, Options{Config: good})
	require.Equal(t, "b", launched(t, r.NewQueue(nil), op))
	require.Equal(t, good, r.ConfigStatus().Path)
	require.Len(t, r.Snapshot().Warnings, 1)
	for path, want := range map[string]string{
		write("broken.json", `{"version": 1,`):                            "ends too early",
		write("stale.json", `{"version": 1, "rules": [{"use": "gone"}]}`): `"gone": unknown name`,
		write("list.json", `{"version": 1, "quarantine": "broken.json"}`): "quarantine file: " + filepath.Join(dir, "broken.json:1:15: the text ends too early"),
		filepath.Join(dir, "nowhere.json"):                                "nowhere.json",
		dir:                                                               "not a regular file",
	} {
		var rec recorder
		r, op := traited(t, Options{Config: path, Observer: &rec})
		require.Equal(t, "a", launched(t, r.NewQueue(nil), op))
		st := r.ConfigStatus()
		require.Equal(t, "ignored", st.State)
		require.Equal(t, path, st.Path)
		require.Contains(t, st.Error, want)
		require.Len(t, r.Snapshot().Warnings, 1)
		require.Contains(t, r.Snapshot().Warnings[0].String(), want)
		require.Equal(t, EventUnknownName, rec.take()[0].Kind)
		require.NoError(t, r.SetConfig(loaded(t, `{"version": 1, "rules": [{"use": "b"}]}`)), "a good one may follow")
		require.Equal(t, "active", r.ConfigStatus().State)
	}
}

func FuzzLoadConfig(f *testing.F) {
	f.Add(`{"version": 1, "rules": [{"match": {"op": "probe", "vendor": "nvidia", "arch": ">=9.0", "signature": {"x": "bf16"}, "traits": {"m": "<=16", "kind": ["a"]}}, "use": "!a", "exclude": ["b"], "objective": "latency", "on_error": "warn"}]}`)
	f.Add(`{"version": 1, "defaults": {"objective": "debug", "strict": true}, "tuning_db": "x", "verdicts": "y"}`)
	f.Add(`{"version": 1, "entries": [{"kernel": "a", "evidence": "e", "source": "s", "device": {"driver": ">=1.2 <3"}}], "lift": [{}]}`)
	f.Add("[[[[[[[[[[[[[[[[[[[[[[[[")
	f.Fuzz(func(t *testing.T, text string) {
		if q, err := loadQuarantine(strings.NewReader(text), "q"); err == nil {
			for _, e := range append(q.entries, q.lifts...) {
				if e.evidence == "" || e.source == "" || e.target.IsZero() {
					t.Fatalf("%+v", e)
				}
			}
		}
		c, err := LoadConfig(strings.NewReader(text), "c")
		if err != nil {
			return
		}
		r, op := traited(t, Options{})
		c.quarantine, c.verdicts = "", ""
		_ = r.SetConfig(c)
		r.Explain(op, cpu0)
		r.Decide(Request{Operator: "probe", Traits: map[string]TraitValue{"m": IntTrait(7)}})
		r.ConfigStatus()
	})
}

// A file of many wrong names, in one line, costs no more than it says: the columns of all, the nearest names of some.
func TestConfigOfManyUnknownNames(t *testing.T) {
	r, _ := mm(t, Options{})
	register(t, r, kernel(t, "kernel_a", nil))
	excluded := strings.TrimSuffix(strings.Repeat(`"kernel_b",`, 1000), ",")
	const rules = 60
	one := `{"match": {"traits": {}}, "exclude": [` + excluded + `], "on_error": "warn"}`
	require.NoError(t, r.SetConfig(loaded(t, `{"version": 1, "rules": [`+strings.TrimSuffix(strings.Repeat(one+",", rules), ",")+`]}`)))
	notes := r.ConfigStatus().Notes
	require.Len(t, notes, rules)
	require.Empty(t, r.ConfigStatus().Rules)
	require.Less(t, len(strings.Join(notes, "")), 32<<10)
	require.Contains(t, notes[0], "kernel_a")
	require.Contains(t, notes[rules-1], fmt.Sprintf(":1:%d:", 1+len(`{"version": 1, "rules": [`)+(rules-1)*(len(one)+1)+strings.Index(one, excluded)))

	_, err := LoadConfig(strings.NewReader(`{"version": 1, "rules": [{"use": "ü ü"}, {"use": "ü"}, {"use": ""}]}`), "c")
	require.ErrorContains(t, err, "c:1:34:")
	require.ErrorContains(t, err, "c:1:50:")
	require.ErrorContains(t, err, "c:1:64:")
}
