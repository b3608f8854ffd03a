package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/opmux/opmux/registry"
)

// plain is a writer for terminals: control characters and marks that turn the direction of text, which a name from a file
// may contain, are written as \x1b or \u202e, in JSON too. Lines and tabs stay.
type plain struct{ w io.Writer }

// Write passes p on. A rune that is cut at the end of p passes as it is.
func (t plain) Write(p []byte) (int, error) {
	var b []byte // nil while nothing had to be replaced
	done := 0
	for i := 0; i < len(p); {
		r, n := utf8.DecodeRune(p[i:])
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069) {
			b = append(b, p[done:i]...)
			b = fmt.Appendf(b, `\u%04x`, r)
			done = i + n
		}
		i += n
	}
	if b == nil {
		return t.w.Write(p)
	}
	if _, err := t.w.Write(append(b, p[done:]...)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// printJSON writes v as indented JSON.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// The last column of a table is wrapped where a line would be longer than tableWidth, but never below lastColumn.
const (
	tableWidth = 120
	lastColumn = 50
)

// cell is one line: what separates lines in a text separates its parts there.
var cell = strings.NewReplacer("\r\n", "; ", "\n", "; ", "\r", "; ", "\t", " ")

// table writes rows of cells in columns, without blanks at the end of a line.
func table(w io.Writer, rows [][]string) error {
	var width []int // of each column but a row's last
	for _, r := range rows {
		for i, c := range r[:max(len(r)-1, 0)] {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(cell.Replace(c)))
		}
	}
	var b strings.Builder
	for _, r := range rows {
		line, indent := "", 0
		for i, c := range r {
			c = cell.Replace(c)
			if i < len(r)-1 {
				line += c + strings.Repeat(" ", width[i]-utf8.RuneCountInString(c)+2)
				indent += width[i] + 2
				continue
			}
			for n, part := range wrap(c, max(tableWidth-indent, lastColumn)) {
				if n > 0 {
					line = strings.Repeat(" ", indent)
				}
				b.WriteString(strings.TrimRight(line+part, " ") + "\n")
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// wrap cuts text at blanks into lines of at most width runes; a longer word has a line of its own.
func wrap(text string, width int) []string {
	lines := []string{""}
	for i, word := range strings.Split(text, " ") {
		last := &lines[len(lines)-1]
		switch {
		case i == 0:
			*last = word
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) <= width:
			*last += " " + word
		default:
			lines = append(lines, word)
		}
	}
	return lines
}

// kernelUse is what one kernel did.
type kernelUse struct {
	Op       string `json:"op"`
	Device   string `json:"device"`
	Kernel   string `json:"kernel"`
	Provider string `json:"provider"`
	Tier     string `json:"tier"`
	Priority int32  `json:"priority"`
	Executed uint64 `json:"executed"`
	Declined uint64 `json:"declined"`
	Failed   uint64 `json:"failed"`
}

// used lists the kernels of r that were tried at least once, in the order of the catalogue and of their chains.
func used(r *registry.Registry) []kernelUse {
	out := []kernelUse{}
	for _, e := range r.Snapshot().Ops {
		for _, s := range append(append([]registry.Step{}, e.Chain...), e.Dropped...) {
			k := kernelUse{Op: e.Op, Device: e.Device, Kernel: s.Kernel, Provider: s.Provider, Tier: s.Tier, Priority: s.Priority,
				Executed: s.Counts.Executed, Failed: s.Counts.Failed}
			for reason, n := range s.Counts.Declined {
				if reason != registry.ReasonForwarded.String() && reason != registry.ReasonDomain.String() { // no fallbacks
					k.Declined += n
				}
			}
			if k.Executed+k.Declined+k.Failed > 0 {
				out = append(out, k)
			}
		}
	}
	return out
}

func usedTable(w io.Writer, use []kernelUse) error {
	rows := [][]string{{"op", "device", "kernel", "provider", "tier", "executed", "declined", "failed"}}
	for _, k := range use {
		rows = append(rows, []string{k.Op, k.Device, k.Kernel, k.Provider, k.Tier, fmt.Sprint(k.Executed), fmt.Sprint(k.Declined), fmt.Sprint(k.Failed)})
	}
	return table(w, rows)
}
