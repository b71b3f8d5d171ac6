package identitygc

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// How many rounds in a row must have found an identity unused before it is deleted.
const (
	enough        = 2
	enoughForMany = 3 // when more than half of all would go
	fewAreNoMany  = 10
)

// unused is what is known of an identity to which no CiliumEndpoint refers.
type unused struct {
	since  time.Time // of the first round that found it so
	rounds int       // in a row
}

// overdue compares identities with the names of those that endpoints have, counts the round, and returns those to delete.
func (c *collector) overdue(identities []object, used map[string]bool) (list []object) {
	now := c.now()
	before := c.unused
	c.unused = map[types.UID]unused{}
	var old []object
	for _, o := range identities {
		if used[o.Name] {
			continue
		}
		u, found := before[o.UID]
		if !found {
			u.since = now
		}
		u.rounds++
		c.unused[o.UID] = u
		if now.Sub(u.since) >= c.Config.Timeout {
			old = append(old, o)
		}
	}
	need := enough
	if len(old) > fewAreNoMany && len(old)*2 > len(identities) {
		need = enoughForMany
	}
	for _, o := range old {
		if c.unused[o.UID].rounds >= need {
			list = append(list, o)
		}
	}
	return list
}
