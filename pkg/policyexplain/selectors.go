package policyexplain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
)

// Selectors returns all selections of peers by labels and fixed identities in rules, sorted, with the identities that they currently match.
func (v *View) Selectors() models.SelectorCache {
	type use struct {
		text  string // may be truncated: different selections can have the same text
		peer  *policy.Peer
		users map[policy.Ref]bool
	}
	uses := map[string]*use{}
	for _, p := range v.policies {
		for i := range p.Parts {
			for k := range p.Parts[i].Rules {
				peers := p.Parts[i].Rules[k].Peers.List
				for n := range peers {
					if peers[n].CIDR.IsValid() {
						continue
					}
					key := peerKey(&peers[n])
					if uses[key] == nil {
						uses[key] = &use{peerText(&peers[n]), &peers[n], map[policy.Ref]bool{}}
					}
					uses[key].users[p.Ref] = true
				}
			}
		}
	}
	out := models.SelectorCache{}
	for _, key := range slices.SortedFunc(maps.Keys(uses), func(a, b string) int {
		return cmp.Or(cmp.Compare(uses[a].text, uses[b].text), cmp.Compare(a, b))
	}) {
		u := uses[key]
		m := models.SelectorIdentityMapping{Selector: u.text, Users: int64(len(u.users))}
		for id := range v.Identities.All(v.txn) {
			if u.peer.MatchesIdentity(id.ID, id.Labels) {
				m.Identities = append(m.Identities, int64(id.ID))
			}
		}
		for _, ref := range slices.SortedFunc(maps.Keys(u.users), compareRefs) {
			m.Labels = append(m.Labels, refLabels(ref)...)
		}
		out = append(out, m)
	}
	return out
}

// peerKey returns a unique key of a selection. Unlike its text the key is never truncated, and text of a user cannot imitate the key's structure.
func peerKey(p *policy.Peer) string {
	key, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Errorf("a choice of peers as JSON: %w", err)) // the value holds only strings and numbers
	}
	return string(key)
}

func compareRefs(a, b policy.Ref) int {
	switch x, y := a.String(), b.String(); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// refLabels returns the labels with which Cilium identifies a policy.
func refLabels(ref policy.Ref) []models.Label {
	const prefix = labels.KeyPolicy + "."
	labels := []models.Label{{Source: "k8s", Key: prefix + "derived-from", Value: string(ref.Kind)}, {Source: "k8s", Key: prefix + "name", Value: ref.Name}}
	if ref.Namespace != "" {
		labels = append(labels, models.Label{Source: "k8s", Key: prefix + "namespace", Value: ref.Namespace})
	}
	return labels
}
