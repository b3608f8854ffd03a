package debug

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/opmux/opmux/registry"
)

// errNotDisabled is what enabling something gets that is not disabled by that name.
var errNotDisabled = errors.New("no such entry is disabled")

// changes are what a POST can do, by the last word of its path.
var changes = map[string]func(*registry.Registry, *http.Request) error{
	"disable": func(r *registry.Registry, req *http.Request) error {
		name := req.PostFormValue("name")
		if r.OpProviderDisabled(name) {
			return nil
		}
		undo, err := r.Disable(name) // refuses unknown names, with the nearest known ones
		if err != nil {
			return err
		}
		defer undo()
		_, err = r.DisableOpProvider(name, true)
		return err
	},
	"enable": func(r *registry.Registry, req *http.Request) error {
		name := req.PostFormValue("name")
		if !r.OpProviderDisabled(name) {
			return fmt.Errorf("%q: %w", name, errNotDisabled)
		}
		if _, err := r.DisableOpProvider(name, false); err != nil {
			return err
		}
		if r.OpProviderDisabled(name) {
			return fmt.Errorf("%q: disabled by the program itself", name)
		}
		return nil
	},
	"strict": func(r *registry.Registry, req *http.Request) error {
		on, err := strconv.ParseBool(req.PostFormValue("on"))
		if err != nil {
			return fmt.Errorf("on=%q is not true or false", req.PostFormValue("on"))
		}
		return r.SetStrict(on)
	},
}

// maxForm bounds what a POST may send.
const maxForm = 64 << 10

// changed answers a POST: it makes the change and shows the page again.
func (h *handler) changed(change func(*registry.Registry, *http.Request) error) http.HandlerFunc {
	var origin http.CrossOriginProtection
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		malformed := r.ParseForm()
		if !h.o.AllowChanges {
			refuse(w, r, "this page changes nothing (debug.Options.AllowChanges)", http.StatusForbidden)
			return
		}
		if err := origin.Check(r); err != nil {
			refuse(w, r, err.Error(), http.StatusForbidden)
			return
		}
		if malformed != nil {
			refuse(w, r, malformed.Error(), http.StatusBadRequest)
			return
		}
		if subtle.ConstantTimeCompare([]byte(r.PostForm.Get("token")), []byte(h.token)) != 1 {
			refuse(w, r, "the token is not this page's: load the page again", http.StatusForbidden)
			return
		}
		if err := change(h.o.withDefaults().Registry, r); err != nil {
			refuse(w, r, err.Error(), http.StatusBadRequest)
			return
		}
		if asksJSON(r) {
			writeJSON(w, h.state(), http.StatusOK)
			return
		}
		http.Redirect(w, r, Path, http.StatusSeeOther)
	}
}
