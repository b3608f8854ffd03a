package registry

import (
	"fmt"
	"strings"

	"github.com/opmux/opmux/device"
)

// Reasons why a kernel does not serve a request, by what refused it.
const (
	WhyLoad        = "load"        // its library or device could not be loaded or probed
	WhyUnavailable = "unavailable" // there is no implementation in this build
	WhyDisabled    = "disabled"
	WhyQuarantine  = "quarantine"
	WhyCapability  = "capability" // the device lacks what it requires
	WhyFormat      = "format"
	WhyFeature     = "feature"
	WhyTrait       = "trait"
	WhySolution    = "solution"
	WhyObjective   = "objective"
	WhyOverride    = "override"
	WhyPolicy      = "policy"
)

// Why is one reason of a verdict.
type Why struct {
	Kind string `json:"kind"`
	Name string `json:"name,omitempty"` // the trait, the feature, the condition
	Want string `json:"want,omitempty"`
	Have string `json:"have,omitempty"`
	Text string `json:"text,omitempty"`
}

// String prints the reason in words.
func (w Why) String() string {
	s := w.Kind
	if w.Name != "" {
		s += " " + w.Name
	}
	if w.Text != "" {
		s += ": " + w.Text
	}
	if w.Want != "" || w.Have != "" {
		have := w.Have
		if have == "" {
			have = "nothing given"
		}
		s += fmt.Sprintf(": wants %s, got %s", w.Want, have)
	}
	return s
}

// Score orders the kernels that can serve a request; each part counts before the next, higher first.
type Score struct {
	Oracle      int   `json:"oracle"`    // 0 to 19, 10 where none speaks
	Objective   int   `json:"objective"` // 1 if the kernel serves the objective
	Priority    int32 `json:"priority"`
	Specificity int   `json:"specificity"` // conditions that the kernel states and the request meets
	Origin      int   `json:"origin"`      // 3 built in, 2 plugin, 1 file, 0 test
}

// String prints the parts in their order.
func (s Score) String() string {
	return fmt.Sprintf("oracle %d, objective %d, priority %d, specificity %d, origin %d", s.Oracle, s.Objective, s.Priority, s.Specificity, s.Origin)
}

// line is the score for a listing; the names of its parts are told once.
func (s Score) line(named bool) string {
	if named {
		return fmt.Sprintf("score: %v", s)
	}
	return fmt.Sprintf("score: %d, %d, %d, %d, %d", s.Oracle, s.Objective, s.Priority, s.Specificity, s.Origin)
}

func verdictWords(verdict string) string {
	if verdict == "possible" {
		return "may serve"
	}
	return verdict
}

// Choice is one candidate of a Decision.
type Choice struct {
	Kernel   string `json:"kernel"`
	Provider string `json:"provider"`
	Tier     string `json:"tier"`
	Priority string `json:"priority"` // as a band
	Verdict  string `json:"verdict"`  // "selected", "eligible", "rejected"; "possible" where only the calls can say
	Score    *Score `json:"score,omitempty"`
	Oracle   string `json:"oracle,omitempty"` // the oracle that spoke
	Why      []Why  `json:"why,omitempty"`    // every reason of a rejection
	Note     string `json:"note,omitempty"`
	Source   string `json:"source,omitempty"`

	// In the record of a request without a signature: what the kernel takes and wants, where it declares that.
	Signatures []string `json:"signatures,omitempty"`
	Restricts  []string `json:"restricts,omitempty"`
}

// Decision is the record of one selection: what was asked, what counted, and the verdict on every kernel of the op, best
// first. It comes from the same code that selects.
type Decision struct {
	Operator  string            `json:"operator"`
	Op        string            `json:"op,omitempty"`
	Device    string            `json:"device,omitempty"`
	Platform  *device.Platform  `json:"platform,omitempty"`
	Print     string            `json:"fingerprint,omitempty"`
	Planned   bool              `json:"planned,omitempty"` // for a machine that is not here
	Signature string            `json:"signature,omitempty"`
	Traits    map[string]string `json:"traits,omitempty"`
	Features  []string          `json:"features,omitempty"`
	Objective string            `json:"objective"`
	Solution  string            `json:"solution,omitempty"`
	Override  string            `json:"override,omitempty"`
	From      string            `json:"override_from,omitempty"`
	Table     string            `json:"table"` // digest of the registry's table
	Snapshot  uint64            `json:"snapshot"`
	Kept      bool              `json:"kept,omitempty"`   // Select has the answer ready
	Winner    string            `json:"winner,omitempty"` // none where the request has no signature: each call decides
	Choices   []Choice          `json:"choices"`
	Ties      []string          `json:"ties,omitempty"` // kernels that only their names told apart from the winner
	Reference string            `json:"reference,omitempty"`
	Error     string            `json:"error,omitempty"`
}

// maxPrinted bounds the signatures of one kernel that String prints.
const maxPrinted = 6

// String prints the decision, the winner first, a kernel a line.
func (d *Decision) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", d.Operator)
	if d.Op != "" && d.Op != d.Operator {
		fmt.Fprintf(&b, " (%s)", d.Op)
	}
	if d.Signature != "" {
		fmt.Fprintf(&b, " with %s", d.Signature)
	}
	if d.Platform != nil {
		fmt.Fprintf(&b, " on %s", d.Platform.Name)
	}
	fmt.Fprintf(&b, " (%s, objective %s", d.Device, d.Objective)
	if d.Planned {
		b.WriteString(", planned")
	}
	b.WriteString(")\n")
	for _, name := range sortedKeys(d.Traits) {
		fmt.Fprintf(&b, "  %s = %s\n", name, d.Traits[name])
	}
	if d.Override != "" {
		fmt.Fprintf(&b, "  override %s from %s\n", d.Override, d.From)
	}
	for i, c := range d.Choices {
		mark := fmt.Sprintf("%d.", i+1)
		if c.Verdict == "rejected" {
			mark = "-"
		}
		fmt.Fprintf(&b, "  %-3s %s  provider %s, tier %s, %s, %s", mark, c.Kernel, c.Provider, c.Tier, c.Priority, verdictWords(c.Verdict))
		if c.Note != "" {
			fmt.Fprintf(&b, "; %s", c.Note)
		}
		b.WriteByte('\n')
		for _, w := range c.Why {
			fmt.Fprintf(&b, "        %v\n", w)
		}
		if c.Score != nil && c.Verdict != "possible" {
			fmt.Fprintf(&b, "        %s\n", c.Score.line(i == 0))
		}
		for i, s := range c.Signatures {
			if i == maxPrinted && len(c.Signatures) > maxPrinted+1 {
				fmt.Fprintf(&b, "        takes %d more\n", len(c.Signatures)-i)
				break
			}
			fmt.Fprintf(&b, "        takes %s\n", s)
		}
		for _, s := range c.Restricts {
			fmt.Fprintf(&b, "        wants %s\n", s)
		}
	}
	if len(d.Choices) == 0 && d.Error == "" {
		b.WriteString("  no kernel is registered\n")
	}
	if len(d.Ties) > 0 {
		fmt.Fprintf(&b, "  tie: only the name decides against %s\n", strings.Join(d.Ties, ", "))
	}
	if d.Reference != "" {
		fmt.Fprintf(&b, "  reference tier: %s\n", d.Reference)
	}
	if d.Error != "" {
		fmt.Fprintf(&b, "  error: %s\n", d.Error)
	}
	return b.String()
}

// maxWhy bounds a reason in an error's text; the record has it in full.
const maxWhy = 500

// NoKernelError says that no kernel can serve a request. It is ErrNoKernel. Its text is made when it is asked for, so a
// probe for support costs none.
type NoKernelError struct {
	q *query
}

// Decision is the record with every kernel's reasons.
func (e *NoKernelError) Decision() *Decision { return e.q.decide() }

// Error names the request and each kernel's first reason.
func (e *NoKernelError) Error() string {
	d := e.Decision()
	var b strings.Builder
	fmt.Fprintf(&b, "registry: no kernel of %s", d.Operator)
	if d.Signature != "" {
		fmt.Fprintf(&b, " for %s", d.Signature)
	}
	if d.Platform != nil {
		fmt.Fprintf(&b, " on %s", d.Platform.Name)
	}
	if len(d.Choices) == 0 {
		b.WriteString(": none is registered")
	}
	for i, c := range d.Choices {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		b.WriteString(c.Kernel)
		if len(c.Why) > 0 {
			b.WriteString(": " + clipTo(c.Why[0].String(), maxWhy))
		}
	}
	return b.String()
}

// Unwrap returns ErrNoKernel.
func (e *NoKernelError) Unwrap() error { return ErrNoKernel }

// OverrideError says that an override names a kernel that cannot serve the request. It is ErrOverride.
type OverrideError struct {
	q      *query
	Target string
	From   string
}

// Decision is the record with every kernel's reasons.
func (e *OverrideError) Decision() *Decision { return e.q.decide() }

// Error names the override, where it came from, and what it violates.
func (e *OverrideError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "registry: %s: override %q (from %s): ", e.q.req.Operator, e.Target, e.From)
	named := 0
	for _, c := range e.Decision().Choices {
		if !e.q.choice.target.Matches(c.Kernel, c.Provider) {
			continue
		}
		named++
		for _, w := range c.Why {
			fmt.Fprintf(&b, "%s: %s; ", c.Kernel, clipTo(w.String(), maxWhy))
		}
	}
	if e.q.choice.unknown != nil {
		b.WriteString(strings.TrimPrefix(e.q.choice.unknown.Error(), "registry: "))
	} else if named == 0 {
		fmt.Fprintf(&b, "names no kernel of %s; ", e.q.d.Name)
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// Unwrap returns ErrOverride.
func (e *OverrideError) Unwrap() error { return ErrOverride }
