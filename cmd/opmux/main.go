// Opmux runs language models on whatever kernels a machine has, and says which kernel ran and why.
//
// Exit codes: 0 success; 1 another failure; 2 wrong usage; 3 a file, value or name that cannot be used; 4 not enough memory
// or context; 5 no kernel for a call; 130 interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/opmux/opmux/bench"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/internal/opfile"
	"github.com/opmux/opmux/llm"
	"github.com/opmux/opmux/llm/tokenizer"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
	"github.com/opmux/opmux/verify"
)

// exitHelp is the part of --help about exit codes.
const exitHelp = "Exit codes: 0 success; 1 another failure (a kernel is wrong, a result differs, something became slower); " +
	"2 wrong usage; 3 a file, value or name that cannot be used; 4 not enough memory or context; 5 no kernel for a call; 130 interrupted."

// Exit codes.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitInput       = 3
	exitMemory      = 4
	exitNoKernel    = 5
	exitInterrupted = 130
)

type commands struct {
	Generate generateCmd `cmd:"" help:"Continue a prompt, streaming text, then show which kernel ran each op."`
	Eval     evalCmd     `cmd:"" help:"Print log-probabilities of tokens, or bits per byte of a text."`
	Run      runCmd      `cmd:"" help:"Run one op on operands from a JSON file and compare with what the file expects."`
	Ops      opsCmd      `cmd:"" help:"List the ops with their operands and kernels."`
	Devices  devicesCmd  `cmd:"" help:"List the devices and what they can do."`
	Explain  explainCmd  `cmd:"" help:"Show which kernels serve an op, best first, and why others do not."`
	Doctor   doctorCmd   `cmd:"" help:"Check this machine: tiers, self-tests, memory, threads, environment."`
	Verify   verifyCmd   `cmd:"" help:"Run every kernel against the reference: numbers, bounds, memory, declared promises."`
	Bench    benchCmd    `cmd:"" help:"Measure kernels, each beside what the machine can do at best."`
	AB       abCmd       `cmd:"" name:"ab" help:"Set two kernels side by side: times, their ratio, results."`
	Env      envCmd      `cmd:"" help:"Show the environment variables, their values and where they come from."`
}

// app is what every command needs.
type app struct {
	ctx    context.Context
	stdout io.Writer // plain, as is stderr
	stderr io.Writer
	screen io.Writer // stderr as it is, for what draws there
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process: it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{ctx: ctx, stdout: plain{stdout}, stderr: plain{stderr}, screen: stderr}
	stdout, stderr = a.stdout, a.stderr
	exit := -1
	parser, err := kong.New(&commands{}, kong.Name("opmux"), kong.Writers(stdout, stderr), kong.Exit(func(c int) { exit = c }),
		kong.Description("The kernel multiplexer for Go inference servers. See 'opmux COMMAND --help'.\n\n"+exitHelp),
		kong.UsageOnError(), kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.Bind(a))
	if err != nil {
		fmt.Fprintln(stderr, "opmux:", err)
		return exitFailure
	}
	cmd, err := parser.Parse(args)
	if exit >= 0 { // --help
		return exit
	}
	if err == nil {
		err = empty(cmd)
	}
	if err != nil {
		var parse *kong.ParseError
		if errors.As(err, &parse) {
			cmd = parse.Context
		}
		fmt.Fprintf(stderr, "opmux: %v\nnext: %s --help\n", err, command(cmd))
		return exitUsage
	}
	err = cmd.Run(a)
	if err == nil {
		return 0
	}
	code, next := diagnose(err, command(cmd))
	if code == exitInterrupted {
		fmt.Fprintln(stderr, "opmux: interrupted")
		return code
	}
	fmt.Fprintf(stderr, "opmux: %v\n", err)
	if next != "" {
		fmt.Fprintf(stderr, "next: %s\n", next)
	}
	return code
}

// command is how the command of a command line is called, "opmux" where there is none.
func command(c *kong.Context) string {
	if c == nil || c.Selected() == nil {
		return "opmux"
	}
	return c.Selected().FullPath()
}

// empty refuses flags and arguments that were given an empty value, unless their tag is empty:"ok".
func empty(c *kong.Context) error {
	for _, p := range c.Path {
		v, name := (*kong.Value)(nil), ""
		switch {
		case p.Flag != nil:
			v, name = p.Flag.Value, "--"+p.Flag.Name
		case p.Positional != nil:
			v, name = p.Positional, p.Positional.Summary()
		}
		if v == nil || v.Tag.Get("empty") == "ok" {
			continue
		}
		switch t := v.Target; t.Kind() {
		case reflect.String, reflect.Map:
			if t.Len() == 0 {
				return usagef("%s: the value is empty", name)
			}
		case reflect.Slice:
			if t.Len() == 0 {
				return usagef("%s: the value is empty", name)
			}
			for i := range t.Len() {
				if e := t.Index(i); e.Kind() == reflect.String && e.Len() == 0 {
					return usagef("%s: a value is empty", name)
				}
			}
		}
	}
	return nil
}

// usage is an error in the way a command was called.
type usage struct{ error }

func usagef(format string, a ...any) error { return usage{fmt.Errorf(format, a...)} }

// errUnknown is the name of a kernel, provider or feature that nothing here has.
var errUnknown = errors.New("unknown name")

// diagnoses map conditions to exit codes and to what a user can do; the first that matches counts.
var diagnoses = []struct {
	is   error
	code int
	next string
}{
	{context.Canceled, exitInterrupted, ""},
	{llm.ErrContextFull, exitMemory, "use a shorter prompt or a longer --context"},
	{llm.ErrMemory, exitMemory, "use a smaller --context, a smaller model, or raise --memory"},
	{device.ErrOutOfMemory, exitMemory, "use a smaller --context or a smaller model"},
	{registry.ErrStrict, exitNoKernel, "run without --strict and OPMUX_STRICT, or see 'opmux explain OP'"},
	{registry.ErrRequired, exitNoKernel, "see 'opmux explain OP' for every kernel and why it was not used"},
	{ops.ErrNoKernel, exitNoKernel, "see 'opmux explain OP' for every kernel and why it was not used"},
	{registry.ErrDeclined, exitNoKernel, "see 'opmux explain OP' for every kernel and why it was not used"},
	{registry.ErrOverride, exitNoKernel, "'opmux explain OP' lists the kernels of an op"},
	{registry.ErrAmbiguous, exitNoKernel, "name the kernel, or the solution, that is meant"},
	{registry.ErrRequest, exitInput, "'opmux ops --json' lists each op's roles and traits"},
	{registry.ErrSpec, exitInput, ""}, {registry.ErrDuplicate, exitInput, ""},
	{verify.ErrNothing, exitInput, "'opmux ops' lists the ops, their operands and kernels"},
	{errVerify, exitFailure, "'opmux verify --kernel NAME --shrink' looks for the smallest call that fails"},
	{tensor.ErrFormat, exitInput, "formats are dtypes, as bf16 or q4_0, or written out, as dense[storage=bf16]"},
	{errUnknown, exitInput, "'opmux ops' lists the ops, 'opmux explain OP' the kernels of one"},
	{registry.ErrUnknownName, exitInput, "'opmux ops' lists the ops, 'opmux explain OP' the kernels of one"},
	{registry.ErrUnknownOp, exitInput, "'opmux ops' lists the ops"},
	{registry.ErrUnknownName, exitInput, "'opmux ops' lists ops, operands and kernels"},
	{registry.ErrUnknownDevice, exitInput, "'opmux devices' lists the devices"},
	{device.ErrPlatform, exitInput, "'opmux devices --platform' writes such a file; docs/platforms has some"},
	{errListen, exitInput, "give a free address of this machine; localhost:0 takes any free port"},
	{gguf.ErrMagic, exitInput, "give a GGUF model file"},
	{gguf.ErrTruncated, exitInput, "copy or download the file again"},
	{gguf.ErrMalformed, exitInput, "the file is damaged or was written by a faulty converter"},
	{gguf.ErrVersion, exitInput, "convert the model to GGUF version 3"},
	{gguf.ErrUnsupported, exitInput, ""},
	{gguf.ErrLimit, exitInput, "the file is far larger in metadata than any model known"},
	{llm.ErrUnsupported, exitInput, "models of the Llama architecture run: Llama 2 and 3, Mistral, TinyLlama, SmolLM"},
	{llm.ErrModel, exitInput, "the file contradicts itself; convert the model again"},
	{llm.ErrToken, exitInput, "token ids lie below the model's vocabulary size"},
	{llm.ErrOption, exitInput, ""},
	{llm.ErrValue, exitInput, "the model or its file is broken: its logits are not numbers"},
	{tokenizer.ErrUnsupported, exitInput, ""},
	{tokenizer.ErrVocab, exitInput, "convert the model again"},
	{opfile.ErrFormat, exitInput, "'opmux run --help' describes the file, 'opmux ops' the operands"},
	{opfile.ErrTooLarge, exitInput, ""},
	{opfile.ErrNoOp, exitInput, "'opmux ops' lists the ops and their operands"},
	{opfile.ErrRoute, exitInput, ""},
	{ops.ErrRank, exitInput, ""}, {ops.ErrShape, exitInput, ""}, {ops.ErrDType, exitInput, ""}, {ops.ErrLayout, exitInput, ""},
	{ops.ErrAttr, exitInput, ""}, {ops.ErrValue, exitInput, ""},
	{bench.ErrOption, exitUsage, "opmux bench --help"},
	{bench.ErrReport, exitInput, "give files that 'opmux bench --json' or '--out' wrote"},
	{sample.ErrCase, exitInput, "'opmux ops' lists operands, dtypes and the symbols of their shapes"},
	{fs.ErrNotExist, exitInput, "check the path"},
	{fs.ErrPermission, exitInput, "check the permissions"},
}

func diagnose(err error, command string) (code int, next string) {
	var u usage
	if errors.As(err, &u) {
		return exitUsage, command + " --help"
	}
	for _, d := range diagnoses {
		switch {
		case !errors.Is(err, d.is):
		case d.code == exitNoKernel && misnamed(err):
			return exitInput, "'opmux ops' lists the ops, 'opmux explain OP' the kernels of one"
		case strings.Contains(d.next, "'"+command+" "): // it has just said what it knows
			return d.code, command + " --help"
		default:
			return d.code, d.next
		}
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		return exitInput, "check the path"
	}
	return exitFailure, ""
}

// misnamed reports whether a kernel is missing because nothing is called like it.
func misnamed(err error) bool {
	var r *registry.RequireError
	if errors.As(err, &r) {
		return slices.ContainsFunc(r.Missing, func(m registry.Missing) bool { return !m.Idle && len(m.Candidates) == 0 })
	}
	return errors.Is(err, registry.ErrUnknownName)
}

// warn prints one line for people on standard error.
func (a *app) warn(format string, args ...any) {
	fmt.Fprintln(a.stderr, strings.TrimRight("opmux: "+fmt.Sprintf(format, args...), "\n"))
}
