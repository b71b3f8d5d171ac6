package identitygc

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/ciliumv2"
)

// How many rounds in a row must have found that nobody has an identity before it is deleted.
const (
	enough        = 2
	enoughForMany = 3 // when more than half of all would go
	fewAreNoMany  = 10
)

// plan is what to do about identities.
type plan struct {
	mark   []mark
	remove []object
}

// mark is an identity whose annotation should be another.
type mark struct {
	object
	heartbeat string // the time; empty to take it away
}

// plan compares identities with the names of those that endpoints have, and counts the round.
func (c *collector) plan(identities []object, used map[string]bool) (out plan) {
	now := c.now()
	before := c.rounds
	c.rounds = map[types.UID]int{}
	var old []object
	for _, o := range identities {
		text := o.Annotations[ciliumv2.HeartbeatAnnotation]
		if used[o.Name] {
			if text != "" {
				out.mark = append(out.mark, mark{o, ""})
			}
			continue
		}
		c.rounds[o.UID] = before[o.UID] + 1
		since, err := time.Parse(time.RFC3339Nano, text)
		switch {
		case err != nil || since.After(now): // none yet, or none that can be
			out.mark = append(out.mark, mark{o, now.UTC().Format(time.RFC3339Nano)})
		case now.Sub(since) >= c.Config.Timeout:
			old = append(old, o)
		}
	}
	need := enough
	if len(old) > fewAreNoMany && len(old)*2 > len(identities) {
		need = enoughForMany
	}
	for _, o := range old {
		if c.rounds[o.UID] >= need {
			out.remove = append(out.remove, o)
		}
	}
	return out
}
