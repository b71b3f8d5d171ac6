package monitor

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/policyexplain"
)

// explainer describes in a sentence why policies deny a packet.
type explainer interface {
	Why(p *policyexplain.Packet) string
}

// policies is the real explainer.
type policies struct{ tables policyexplain.Tables }

func newExplainer(t policyexplain.Tables) explainer { return &policies{t} }

// Why implements explainer.
func (p *policies) Why(packet *policyexplain.Packet) string {
	return p.tables.View().Why(packet)
}

const (
	// explainRate is the maximum number of explanations per second; it bounds the cost of a flood of drops. A packet that a thousand policies nearly allow
	// takes 3 to 5 ms.
	explainRate      = 10
	explainBurst     = 20
	explainAge       = 5 * time.Second
	explainCacheSize = 512 // maximum number of cached explanations
	unexplained      = "not looked up: too many different packets are dropped at once"
)

// thrifty caches explanations for explainAge and limits the rate of the calls to an explainer. It is not safe for concurrent use.
type thrifty struct {
	explainer explainer
	limit     *rate.Limiter
	known     map[policyexplain.Packet]explained
}

type explained struct {
	why string
	at  time.Time
}

func newThrifty(e explainer) *thrifty {
	return &thrifty{explainer: e, limit: rate.NewLimiter(explainRate, explainBurst), known: map[policyexplain.Packet]explained{}}
}

func (t *thrifty) why(p *policyexplain.Packet, now time.Time) string {
	if known, found := t.known[*p]; found && now.Sub(known.at) < explainAge {
		return known.why
	}
	if !t.limit.AllowN(now, 1) {
		return unexplained
	}
	if len(t.known) >= explainCacheSize {
		clear(t.known)
	}
	why := t.explainer.Why(p)
	t.known[*p] = explained{why, now}
	return why
}
