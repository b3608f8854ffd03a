// A first, minimal form: the fields and checks that selection asks for.
package device

import "github.com/opmux/opmux/tensor"

type Platform struct {
	Vendor, Name string
	Kind         tensor.Kind
	Features     []string
}

func (p *Platform) Validate() error     { return nil }
func (p *Platform) Fingerprint() string { return p.Vendor + p.Name }

type Requirement struct{ Vendors []string }

func (r *Requirement) Validate() error              { return nil }
func (r Requirement) Clone() Requirement            { return r }
func (r *Requirement) Check(p *Platform) []Reason   { return nil }
func (r *Requirement) SatisfiedBy(p *Platform) bool { return len(r.Check(p)) == 0 }
func (r *Requirement) Conditions() int              { return len(r.Vendors) }

type Reason struct{ Kind, Want, Have string }

func (r Reason) String() string { return r.Kind }
func (c *ProviderCaps) AsPlatform() *Platform {
	return &Platform{Vendor: c.Device.Kind.String(), Kind: c.Device.Kind, Name: c.Arch}
}
