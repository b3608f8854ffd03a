package registry

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opmux/opmux/device"
	"github.com/stretchr/testify/require"
)

const specText = `{
  "version": 1,
  "operators": [
    {"name": "moe.apply", "roles": ["x"], "traits": [
      {"name": "tokens", "type": "int", "dynamic": true, "required": true},
      {"name": "activation", "type": "string", "default": "silu"}
    ]}
  ],
  "kernels": [
    {"name": "one", "family": "moe", "mode": "apply", "solution": "s", "kinds": ["cuda"], "priority": "SPECIALIZED+1",
     "requires": {"vendors": ["nvidia"], "min_arch": "9.0"},
     "signatures": ["x=bf16", {"x": "f16"}],
     "constraints": {"tokens": {"at_most": 64}, "activation": {"one_of": ["silu", "swiglu"]}},
     "unavailable": "its code is elsewhere"},
    {"name": "two", "family": "moe", "mode": "apply", "solution": "t", "kinds": ["cuda", "rocm"],
     "signatures": ["x=bf16"], "unavailable": "its code is elsewhere"}
  ]
}`

func TestLoadSpecs(t *testing.T) {
	r := New(Options{})
	kernels, err := r.LoadSpecs(strings.NewReader(specText), "file:a.json")
	require.NoError(t, err)
	require.Len(t, kernels, 2)
	k := kernels[0].Spec()
	require.Equal(t, [3]string{"file:a.json", "a.json:10", "SPECIALIZED+1"}, [3]string{k.Origin, k.Source, k.Priority.String()})
	require.Equal(t, []string{"moe.apply"}, r.ListOperators())
	req := Request{Operator: "moe.apply", Signature: sig(t, "x=bf16"), Traits: map[string]TraitValue{"tokens": IntTrait(64)}, Platform: gpu(device.NVIDIA, 9, 0)}
	require.Equal(t, "one", winner(t, r, req))
	req.Traits["tokens"] = IntTrait(65)
	require.Equal(t, "two", winner(t, r, req))
	digest := r.Digest()

	// More kernels of the operator, which is declared alike again; then a file that fails in its last kernel.
	more := strings.NewReplacer(`"one"`, `"three"`, `"two"`, `"four"`).Replace(specText)
	_, err = r.LoadSpecs(strings.NewReader(more), "plugin:p")
	require.ErrorIs(t, err, ErrSpec)
	require.ErrorContains(t, err, "any_band")
	_, err = r.LoadSpecs(strings.NewReader(strings.ReplaceAll(more, `"solution"`, `"any_band": true, "solution"`)), "plugin:p")
	require.NoError(t, err)
	require.NoError(t, r.Unregister("three"))
	require.NoError(t, r.Unregister("four"))
	require.Equal(t, digest, r.Digest())
	for text, want := range map[string]string{
		strings.Replace(more, `"name": "four"`, `"name": "one"`, 1):            "a.json:15: registry: moe.apply on cuda: kernel one is registered at a.json:10: duplicate",
		strings.Replace(more, `"name": "four"`, `"name": "three"`, 1):          "kernel three is registered",
		strings.Replace(more, `"default": "silu"`, `"default": "gelu"`, 1):     "operators.moe.apply.traits",
		strings.Replace(more, `"moe.apply", "roles"`, `"moe.act", "roles"`, 1): `unknown`,
	} {
		_, err = r.LoadSpecs(strings.NewReader(text), "file:a.json")
		if want == "unknown" { // the operator of that name stands, and the kernels name the other
			require.NoError(t, err)
			require.NoError(t, r.Unregister("three"))
			require.NoError(t, r.Unregister("four"))
			continue
		}
		require.ErrorContains(t, err, want)
		require.Equal(t, digest, r.Digest())
		require.Equal(t, []string{"one", "two"}, r.ListKernels("", ""))
	}

	// A file that declares an operator and then fails leaves no operator behind, and its events with it.
	fresh := New(Options{})
	require.NoError(t, fresh.Seal())
	last := specText[strings.Index(specText, `{"name": "two"`):strings.LastIndex(specText, "\n  ]")]
	tied := strings.Replace(specText, last, last+","+strings.Replace(last, `"two"`, `"zwei"`, 1), 1)
	_, err = fresh.LoadSpecs(strings.NewReader(strings.Replace(tied, last+",", last+","+last+",", 1)), "file:a.json")
	require.ErrorIs(t, err, ErrDuplicate)
	_, ok := fresh.Lookup("moe.apply")
	require.False(t, ok)
	ties := func() (n int) {
		for _, e := range fresh.Events() {
			n += b2i(e.Kind == EventTie)
		}
		return n
	}
	_, err = fresh.Define(Descriptor{Name: "another"})
	require.NoError(t, err)
	require.Zero(t, ties())
	_, err = fresh.LoadSpecs(strings.NewReader(tied), "file:a.json")
	require.NoError(t, err)
	require.Equal(t, 2, ties(), "two and zwei, on both kinds")
	require.NoError(t, kernels[0].Close())
}

// Whatever is wrong with a file is a typed error that says where.
func TestSpecFileErrors(t *testing.T) {
	edit := func(old, new string) string {
		require.Contains(t, specText, old)
		return strings.Replace(specText, old, new, 1)
	}
	for _, c := range []struct {
		text, want string
	}{
		{"", "s.json:1:1: unexpected end"},
		{"[]", "s.json:1:1: want"},
		{"{}", "version 0"},
		{`{"version": 2, "kernels": []}`, "version 2"},
		{`{"version": 1, "version": 1}`, `s.json:1:16: key "version" comes twice`},
		{`{"version": 1, "kernel": []}`, `s.json:1:16: key "kernel" is none of`},
		{`{"version": 1, "kernels": {}}`, "s.json:1:27: want"},
		{`{"version": 1, "kernels": [1]}`, "s.json:1:28: "},
		{`{"version": 1, "kernels": [{}]} {}`, "s.json:1:33: "},
		{`{"version": "1"}`, "s.json:1:13: "},
		{edit(`"solution": "s"`, `"solutions": "s"`), `s.json:10:5: json: unknown field "solutions"`},
		{edit(`"priority": "SPECIALIZED+1"`, `"priority": "SPECIALIZED+4"`), "s.json:10:5: "},
		{edit(`"kinds": ["cuda"]`, `"kinds": ["cudaa"]`), "s.json:10:5: "},
		{edit(`"x=bf16", {`, `"x=bf17", {`), "s.json:10:5: "},
		{edit(`{"at_most": 64}`, `{"atmost": 64}`), "s.json:10:5: "},
		{edit(`"type": "int"`, `"type": "integer"`), "s.json:4:5: "},
		{edit(`"name": "two",`, `"name": "two"`), "s.json:15:20: "},
	} {
		_, err := ParseSpecs(strings.NewReader(c.text), "file:s.json")
		require.ErrorIs(t, err, ErrSpec, c.text)
		var e *SpecFileError
		require.ErrorAs(t, err, &e)
		require.True(t, strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), c.want) && !strings.Contains(c.want, ":"), "%v, want %s", err, c.want)
	}
	for _, c := range []struct{ text, want string }{
		{edit(`{"at_most": 64}`, `{"at_least": 9, "one_of": ["x"]}`), "s.json:10: "},
		{edit(`"tokens": {"at_most"`, `"token": {"at_most"`), "nearest: tokens"},
		{edit(`"unavailable": "its code is elsewhere"},`, `"doc": "x"},`), "unavailable"},
		{edit(`"x=bf16", {`, `"y=bf16", {`), "signatures[0]"},
		{edit(`"moe.apply", "roles"`, `"moe", "roles"`), "operators.moe.name"},
		{edit(`"roles": ["x"]`, `"roles": ["x", "x"]`), "operators.moe.apply"},
		{edit(`"default": "silu"`, `"default": 1`), "default 1 is int"},
		{edit(`"name": "activation"`, `"name": "tokens"`), "trait tokens: duplicate"},
		{edit(`"required": true`, `"required": true, "default": 1`), "required and has a default"},
		{edit(`"type": "int", `, ""), "has no type"},
		{edit(`{"name": "activation"`, `{"name": "activation", "aliases": ["tokens"]`), "duplicate"},
	} {
		r := New(Options{})
		_, err := r.LoadSpecs(strings.NewReader(c.text), "file:s.json")
		require.ErrorContains(t, err, c.want)
		require.ErrorIs(t, err, ErrSpec, err)
		require.Empty(t, r.ListKernels("", ""))
	}
	_, err := ParseSpecs(strings.NewReader(`{"version": 1, "kernels": [`+strings.Repeat(" ", maxSpecFile)+`]}`), "file:s.json")
	require.ErrorContains(t, err, "more than 4194304 bytes")
	_, err = ParseSpecs(strings.NewReader(`{"version": 1, "kernels": [`+strings.Repeat("{},", maxSpecItems)+`{}]}`), "file:s.json")
	require.ErrorContains(t, err, "more than 4096 kernels")
	_, err = ParseSpecs(failingReader{}, "file:s.json")
	require.ErrorIs(t, err, errBroken)
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, fmt.Errorf("reader: %w", errBroken) }

// No text makes the reader or the registry do anything but refuse it or take it.
func FuzzLoadSpecs(f *testing.F) {
	f.Add(specText)
	f.Fuzz(func(t *testing.T, text string) {
		r := New(Options{})
		kernels, err := r.LoadSpecs(strings.NewReader(text), "file:f")
		if err != nil {
			require.Empty(t, r.ListKernels("", ""))
			return
		}
		for _, k := range kernels {
			s, err := r.DescribeKernel(k.Spec().Name)
			require.NoError(t, err)
			require.NotEmpty(t, s.String())
			req := Request{Operator: s.Operator(), Signature: s.Signatures[0], Platform: gpu(device.NVIDIA, 9, 0)}
			if _, err = r.Select(req); err != nil {
				require.True(t, errors.Is(err, ErrNoKernel) || errors.Is(err, ErrRequest) || errors.Is(err, ErrAmbiguous), err)
			}
		}
	})
}

// The files of test data load in any order into one registry, with the same digest.
func TestSpecDataLoads(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "specs", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var digests []string
	for _, backwards := range []bool{false, true} {
		r := New(Options{})
		total := 0
		for i := range files {
			name := files[i]
			if backwards {
				name = files[len(files)-1-i]
			}
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			kernels, err := r.LoadSpecs(bytes.NewReader(b), "file:"+filepath.Base(name))
			require.NoError(t, err)
			total += len(kernels)
		}
		require.Len(t, r.ListKernels("", ""), total)
		digests = append(digests, r.Digest())
	}
	require.Equal(t, digests[0], digests[1])
}

// What a file says of a constraint is read as it stands, or refused: no end of a range is made up, and no list grows
// beyond what errors and records can carry.
func TestSpecFileConstraints(t *testing.T) {
	load := func(constraint string) error {
		r := New(Options{})
		_, err := r.LoadSpecs(strings.NewReader(`{"version": 1, "operators": [{"name": "a.b", "roles": ["x"], "traits": [{"name": "n", "type": "int", "default": -1}]}],
			"kernels": [{"name": "k", "family": "a", "mode": "b", "solution": "s", "kinds": ["cuda"], "signatures": [{"x": "f32"}], "unavailable": "x",
			"constraints": {"n": `+constraint+`}}]}`), "file:x")
		if err != nil {
			return err
		}
		_, err = r.Select(Request{Operator: "a.b", Signature: sig(t, "x=f32"), Platform: gpu(device.NVIDIA, 9, 0)})
		require.ErrorIs(t, err, ErrNoKernel)
		require.Less(t, len(err.Error()), 1000)
		return nil
	}
	for _, good := range []string{`{"range": [0, 9223372036854775807]}`, `{"one_of": [` + strings.Repeat("7,", 8000) + `7]}`, strings.Repeat(`{"any_of": [`, 8) + `{"at_least": 0}` + strings.Repeat(`]}`, 8)} {
		require.NoError(t, load(good), clip(good))
	}
	for bad, want := range map[string]string{
		`{"range": [1]}`: "not [lowest, highest]", `{"range": [1, 2, 3]}`: "not [lowest, highest]", `{"range": "1-2"}`: "not [lowest, highest]", `{"range": [2, 1]}`: "is empty",
		`{"one_of": [` + strings.Repeat("7,", 9000) + `7]}`: "lists 9002 values", `{"any_of": [` + strings.Repeat(`{"at_least": 1},`, 9000) + `{}]}`: "lists 9002 values",
		strings.Repeat(`{"not": `, 5000) + `{}` + strings.Repeat(`}`, 5000): "more than 8 deep",
	} {
		err := load(bad)
		require.ErrorIs(t, err, ErrSpec, clip(bad))
		require.ErrorContains(t, err, want)
		require.Less(t, len(err.Error()), 500)
	}
}
