package registry

import (
	"reflect"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
	"unsafe"

	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

func lookupIn(m map[string]string) func(string) (string, bool) {
	return func(n string) (string, bool) { v, ok := m[n]; return v, ok }
}

func TestOptionsFromEnv(t *testing.T) {
	o, w := OptionsFromEnv(lookupIn(map[string]string{
		"OPMUX_DISABLE": " avx2, ,vt-native@matmul , mlx@metal:1,avx2", "OPMUX_STATS": "true", "OPMUX_STRICT": "1", "OPMUX_REFERENCE": "Allow",
		"OPMUX_OVERRIDE": "matmul=mlx; attention.decode = reference", "OPMUX_FORCE": "relu=portable", "OPMUX_EXPLAIN": "matmul,relu",
		"OPMUX_THREADS": "3", "OPMUX_PLUGIN_PATH": "/a:/b", "OPMUX_DISABLE_PLUGINS": "t", "OPMUX_CUBLASLT": "/x", "OPMUX_CUDA_SYNC": "0",
		"OPMUX_MLX": "/m", "OPMUX_CONFIG": "c.json"}))
	require.Equal(t, []Warning{{"OPMUX_DISABLE", `stands there twice: "avx2"`}}, w)
	require.Equal(t, Options{Disable: []string{"avx2", "vt-native@matmul", "mlx@metal:1"}, Stats: true, Strict: true, Reference: ReferenceAllow,
		Override: map[string]string{"matmul": "mlx", "attention.decode": "reference"}, Force: map[string]string{"relu": "portable"},
		Explain: []string{"matmul", "relu"}, Threads: 3, PluginPath: []string{"/a", "/b"}, DisablePlugins: true, CUBLASLt: "/x", MLX: "/m", Config: "c.json"}, o)

	o, w = OptionsFromEnv(lookupIn(nil))
	require.Empty(t, w)
	require.Equal(t, Options{}, o)
}

// The ancestor's names count where the own ones are not set.
func TestEnvAliases(t *testing.T) {
	env := map[string]string{"VT_OP_PROVIDER_STATS": "1", "VT_OP_PROVIDER_DISABLE": "a,b"}
	o, w := OptionsFromEnv(lookupIn(env))
	require.Empty(t, w)
	require.Equal(t, Options{Stats: true, Disable: []string{"a", "b"}}, o)
	env["OPMUX_STATS"], env["OPMUX_DISABLE"] = "0", "c"
	o, _ = OptionsFromEnv(lookupIn(env))
	require.Equal(t, Options{Disable: []string{"c"}}, o)
}

func TestEnvWarnings(t *testing.T) {
	o, w := OptionsFromEnv(lookupIn(map[string]string{"OPMUX_DISABLE": "good,a b,x@y z," + strings.Repeat("n", 300), "OPMUX_STATS": "yes", "OPMUX_REFERENCE": "on",
		"OPMUX_OVERRIDE": "matmul;relu=x", "OPMUX_THREADS": "0", "OPMUX_STRICT": ""}))
	require.Equal(t, Options{Disable: []string{"good"}, Override: map[string]string{"relu": "x"}}, o)
	var text []string
	for _, x := range w {
		text = append(text, x.String())
	}
	all := strings.Join(text, "\n")
	require.Len(t, w, 5)
	for _, s := range []string{`OPMUX_DISABLE: not a name, name@op or name@device: "a b", "x@y z"`, `OPMUX_STATS: "yes" is not a truth value`,
		`OPMUX_REFERENCE: "on" is not off, warn or allow`, `OPMUX_OVERRIDE: not op=target: "matmul"`, `OPMUX_THREADS: "0" is not a number from 1 to 4096`} {
		require.Contains(t, all, s)
	}
	require.Less(t, len(all), 700, "long values are clipped")

	w = UnknownVariables([]string{"PATH=/bin", "OPMUX_STAT=1", "OPMUX_DISABLED=x", "OPMUX_CONFORMANCE=y", "OPMUX_QQQQQQQQQQQQQ=1", "OPMUX_STATS=1"})
	require.Len(t, w, 3)
	require.Contains(t, w[0].String(), "OPMUX_STAT: unknown variable; nearest: OPMUX_STATS")
	require.Contains(t, w[1].String(), "nearest: OPMUX_DISABLE")
	require.Equal(t, "OPMUX_QQQQQQQQQQQQQ: unknown variable", w[2].String())
}

// Every variable of the table has a meaning and, through its value, an effect that the table shows with its source.
func TestEnvTable(t *testing.T) {
	for _, e := range EnvTable(lookupIn(nil)) {
		require.NotEmpty(t, e.Meaning)
		require.Equal(t, "default", e.Source)
		require.Empty(t, e.Value)
	}
	env := map[string]string{"OPMUX_THREADS": " 2 ", "VT_OP_PROVIDER_DISABLE": "x"}
	seen := map[string]EnvVar{}
	for _, e := range EnvTable(lookupIn(env)) {
		seen[e.Name] = e
	}
	require.Equal(t, "2", seen["OPMUX_THREADS"].Value)
	require.Equal(t, "OPMUX_THREADS", seen["OPMUX_THREADS"].Source)
	require.Equal(t, "VT_OP_PROVIDER_DISABLE", seen["OPMUX_DISABLE"].Source)
	require.Contains(t, seen, "OPMUX_CONFORMANCE")
	for _, v := range variables {
		val := map[string]string{"OPMUX_REFERENCE": "off", "OPMUX_OVERRIDE": "a=b", "OPMUX_FORCE": "a=b"}[v.name]
		if val == "" {
			val = "1"
		}
		o, w := OptionsFromEnv(lookupIn(map[string]string{v.name: val}))
		require.Empty(t, w, v.name)
		require.False(t, reflect.DeepEqual(o, Options{}), "%s does nothing", v.name)
	}
}

// The default registry reads the environment once, at its first compile, and says what it did not understand.
func TestDefaultReadsEnvironment(t *testing.T) {
	r, op := probe(t, Options{})
	reads := 0
	r.loadOptions = func() (Options, []Warning) {
		reads++
		return Options{Disable: []string{"a", "nobodi"}}, []Warning{{"OPMUX_X", "unknown variable"}}
	}
	var rec recorder
	r.SetObserver(&rec)
	add(t, r, op, 0, OpProvider{Name: "a", Priority: 2})
	add(t, r, op, 0, OpProvider{Name: "nobody"})
	require.Zero(t, reads, "registration reads nothing")
	q := r.NewQueue(nil)
	require.Equal(t, "nobody", launched(t, q, op))
	require.Equal(t, "nobody", launched(t, q, op))
	require.Equal(t, 1, reads)
	require.Equal(t, []Warning{{"OPMUX_X", "unknown variable"}, {"disable", `"nobodi": unknown name; nearest: nobody`}}, r.Snapshot().Warnings)
	kinds := map[EventKind]int{}
	for _, e := range rec.take() {
		kinds[e.Kind]++
	}
	require.Equal(t, 2, kinds[EventUnknownName])
	_, err := r.DisableOpProvider("a", false)
	require.NoError(t, err)
	require.Equal(t, "a", launched(t, q, op), "enabling undoes an entry of the options")
}

// The package functions are the methods of one registry, which reads the real environment.
func TestDefault(t *testing.T) {
	used := defaultRegistry
	defaultRegistry = sync.OnceValue(newDefault)
	t.Cleanup(func() { defaultRegistry = used })
	r := Default()
	require.Same(t, r, Default())
	t.Setenv("OPMUX_DISABLE", "from-env")
	t.Setenv("OPMUX_SPELLED_WRONG", "1")
	op := define(t, r, "default_probe")
	_, err := RegisterTypedOp(op, tensor.XPU, func(_ *Queue, a *probeArgs) Status { a.Ran = "typed"; return 0 })
	require.NoError(t, err)
	_, err = RegisterOp(op, tensor.CPU, ran("cpu"))
	require.NoError(t, err)
	_, err = RegisterOpProvider(op, tensor.XPU, OpProvider{Name: "vendor", Priority: 9, Fn: ran("vendor")})
	require.NoError(t, err)
	require.Equal(t, "first", MustRegister(op, tensor.XPU, OpProvider{Name: "from-env", Kernel: "first", Priority: 99, Fn: ran("never")}).Kernel())
	require.Panics(t, func() { MustRegister(op, tensor.XPU, OpProvider{Name: "vendor", Fn: ran("twice")}) })
	require.NoError(t, SetDeviceProviderCaps(xpu0, unified()))
	require.True(t, GetDeviceProviderCaps(xpu0).Valid)

	q := r.NewQueue(&fakeQueue{dev: xpu0})
	defer q.Close()
	require.True(t, OpProviderDisabled("from-env"))
	require.True(t, OpRegistered(op, xpu0))
	require.Equal(t, 3, OpProviderCount(op, xpu0))
	require.Equal(t, "vendor", OpProviderNameAt(op, xpu0, 1))
	EnableOpProviderCallStats(true)
	defer EnableOpProviderCallStats(false)
	fn, err := GetOp(op, xpu0)
	require.NoError(t, err)
	var a probeArgs
	require.Equal(t, OK, fn(q, unsafe.Pointer(&a)).Code())
	require.Equal(t, "vendor", a.Ran)
	matched, err := DisableOpProvider("vendor", true)
	require.NoError(t, err)
	require.True(t, matched)
	typed, err := GetTypedOp[probeArgs](op, xpu0)
	require.NoError(t, err)
	require.Equal(t, OK, typed(q, &a).Code())
	require.Equal(t, "typed", a.Ran)
	fn, err = GetOpFallback(op, xpu0, NativeProviderName)
	require.NoError(t, err)
	require.Equal(t, OK, fn(q, unsafe.Pointer(&a)).Code())
	require.Equal(t, "cpu", a.Ran, "the borrowed kernel stands below")
	NoteOpDecline(op, xpu0)
	require.Equal(t, OpProviderStats{LastSelected: NativeProviderName, Selections: 2, Declines: 2}, GetOpProviderStats(op, xpu0))
	ResetOpProviderStats(op, xpu0)
	require.Equal(t, OpProviderStats{}, GetOpProviderStats(op, xpu0))
	require.True(t, ReferenceTierEligible(xpu0))
	require.EqualValues(t, 1, GetReferenceTierHits())
	RegisterReferenceTier(xpu0)
	require.Zero(t, RegisterReferenceTier(xpu0))
	var text []string
	for _, w := range r.Snapshot().Warnings {
		text = append(text, w.String())
	}
	require.Contains(t, strings.Join(text, "\n"), "OPMUX_SPELLED_WRONG: unknown variable")
}

func FuzzOptionsFromEnv(f *testing.F) {
	f.Add("a,b@c,d@cuda:1", "1", "warn", "x=y;z=w", "4")
	f.Add("@@,a@,@b", "yes", "\xff", "==;=", "-1")
	f.Add(strings.Repeat("x,", 50), "", "ALLOW", strings.Repeat("a=b;", 50), "99999999999999999999")
	f.Fuzz(func(t *testing.T, disable, stats, reference, pairs, threads string) {
		env := lookupIn(map[string]string{"OPMUX_DISABLE": disable, "OPMUX_STATS": stats, "OPMUX_REFERENCE": reference, "OPMUX_OVERRIDE": pairs,
			"OPMUX_FORCE": pairs, "OPMUX_THREADS": threads, "OPMUX_EXPLAIN": disable})
		o, w := OptionsFromEnv(env)
		for _, e := range o.Disable {
			if _, err := parseEntry(e); err != nil {
				t.Fatalf("kept a bad entry: %v", err)
			}
		}
		for op, k := range o.Force {
			if got, err := ParseTarget(k); checkName("op", op) != nil || err != nil || got.String() != k {
				t.Fatalf("kept a bad pair %q=%q", op, k)
			}
		}
		if o.Threads < 0 || o.Threads > 4096 || o.Reference > ReferenceAllow {
			t.Fatalf("out of range: %+v", o)
		}
		for _, x := range w {
			if x.Text == "" || !strings.HasPrefix(x.Name, "OPMUX_") || utf8.ValidString(disable+stats+reference+pairs+threads) && !utf8.ValidString(x.Text) {
				t.Fatalf("bad warning %q", x)
			}
		}
		o.Stats = false // nothing to standard error
		r, op := probe(t, o)
		add(t, r, op, 0, OpProvider{Name: "only"})
		r.Explain(op, cpu0)
		UnknownVariables([]string{"OPMUX_" + disable, stats})
	})
}
