package identitygc

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Number of consecutive rounds that must find an identity unused before its deletion.
const (
	minRounds        = 2
	minRoundsForMany = 3  // if more than half of all identities, and more than few of them, would be deleted
	few              = 10 // identities
)

// unused is the state of an identity to which no CiliumEndpoint refers.
type unused struct {
	since  time.Time // of the first round that found the identity unused
	rounds int       // consecutive rounds that found the identity unused
}

// overdue counts the round for each identity without a reference, and returns the identities to delete.
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
	need := minRounds
	if len(old) > few && len(old)*2 > len(identities) {
		need = minRoundsForMany
	}
	for _, o := range old {
		if c.unused[o.UID].rounds >= need {
			list = append(list, o)
		}
	}
	return list
}
