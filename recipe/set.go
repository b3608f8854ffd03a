package recipe

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Set is a table of prepared recipes by name. The zero value is empty and ready. It is safe for concurrent use.
type Set struct {
	mu   sync.RWMutex
	list map[string]*Prepared
}

// Add prepares r and puts it into the set. ErrRecipe, ErrDuplicate.
func (s *Set) Add(r Recipe) (*Prepared, error) {
	p, err := Prepare(r)
	if err != nil {
		return nil, err
	}
	return p, s.put(p)
}

func (s *Set) put(p *Prepared) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := p.recipe.Name
	if s.list[name] != nil {
		return fmt.Errorf("recipe %s: %w", name, ErrDuplicate)
	}
	if s.list == nil {
		s.list = map[string]*Prepared{}
	}
	s.list[name] = p
	return nil
}

// Get finds a recipe by name.
func (s *Set) Get(name string) (*Prepared, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.list[name]
	return p, ok
}

// Names lists the recipes, sorted.
func (s *Set) Names() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.list))
}

//go:embed catalogue.json
var catalogueText []byte

// prepared reads the catalogue once.
var prepared = sync.OnceValue(func() (list []*Prepared) {
	var recipes []Recipe
	err := json.Unmarshal(catalogueText, &recipes)
	for _, r := range recipes {
		p, e := Prepare(r)
		if e != nil {
			err = e
		}
		list = append(list, p)
	}
	if err != nil {
		panic(err) // the file is part of the program
	}
	return list
})

// Catalogue returns a new set with the catalogue's nine recipes. What is added to it stays in it.
func Catalogue() *Set {
	s := &Set{}
	for _, p := range prepared() {
		_ = s.put(p) // a duplicate is no recipe of the catalogue
	}
	return s
}
