package install

import (
	"cmp"
	"slices"
	"strings"
)

// rule is one rule of a role: all permissions of an account for one resource.
type rule struct {
	Group, Resource string
	Verbs           []string
	Names           []string
	Cells           string // the cells that use it, for the reader of the manifest
}

// rules returns the rules of an account, for its namespace or for the whole cluster.
func rules(account Account, within bool) []rule {
	merged := map[string]*rule{}
	for _, p := range Permissions() {
		if p.Account != account || p.Within != within {
			continue
		}
		key := p.Group + "/" + p.Resource + "/" + strings.Join(p.Names, ",")
		r := merged[key]
		if r == nil {
			r = &rule{Group: p.Group, Resource: p.Resource, Names: p.Names}
			merged[key] = r
		}
		r.Verbs = append(r.Verbs, p.Verbs...)
		if !slices.Contains(strings.Split(r.Cells, ", "), p.Cell) {
			r.Cells = strings.TrimPrefix(r.Cells+", "+p.Cell, ", ")
		}
	}
	var all []rule
	for _, r := range merged {
		slices.SortFunc(r.Verbs, func(a, b string) int { return cmp.Compare(slices.Index(verbs, a), slices.Index(verbs, b)) })
		r.Verbs = slices.Compact(r.Verbs)
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b rule) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource), slices.Compare(a.Names, b.Names))
	})
	return all
}

// verbs are all verbs, in output order.
var verbs = []string{"get", "list", "watch", "create", "update", "patch", "delete"}
