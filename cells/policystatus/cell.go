package policystatus

import (
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/spf13/pflag"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/kubeapi"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
)

// Cell tells what is not enforced.
var Cell = cell.Module("policy-status", "Conditions and Events of policies",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newTable, // only this cell may write
		newGroupTable,
		newKeeps, // which labels policies can ask for
		newL7Mode,
	),
	cell.Invoke(
		registerFollowers, // jobs: objects into statements
		registerWriter,    // statements into conditions and Events
	),
)

// Config is what was typed. The flags mean the same in the role of a node.
type Config struct {
	Labels          string `mapstructure:"labels"`
	LabelPrefixFile string `mapstructure:"label-prefix-file"`
	L7Rules         string `mapstructure:"l7-rules"`
}

// DefaultConfig are the defaults.
var DefaultConfig = Config{L7Rules: string(policy.DenyL7)}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("labels", c.Labels, "Rules [source:][!]regexp, separated by commas or spaces, that include (or with ! exclude) "+
		"labels whose key begins so in identities; one that includes leaves out all that none includes")
	flags.String("label-prefix-file", c.LabelPrefixFile, "JSON file with rules in the place of the default ones")
	flags.String("l7-rules", c.L7Rules, policy.L7RulesUsage)
}

func newL7Mode(c Config) (policy.L7Mode, error) { return policy.ParseL7Mode(c.L7Rules) }

// keeps tells whether a label is part of identities. When nil, nobody can tell.
type keeps func(label string) bool

// newKeeps reads the rules. A file of theirs may be on the nodes alone, which must not keep this role from its other work.
func newKeeps(c Config, log *slog.Logger) keeps {
	filter, err := labels.ReadFilter(c.Labels, c.LabelPrefixFile)
	if err != nil {
		log.Warn("Policies that ask for labels outside of identities are not noticed", "error", err)
		return nil
	}
	return filter.Keeps
}

type params struct {
	cell.In

	Log        *slog.Logger
	DB         *statedb.DB
	Table      statedb.RWTable[*statement]
	Groups     statedb.RWTable[*cilium.CIDRGroup]
	Leadership statedb.Table[leadership.Leadership]
	Keeps      keeps
	L7Mode     policy.L7Mode
	Client     *kubeapi.Client
}

const (
	retryMin  = 200 * time.Millisecond
	retryMax  = 10 * time.Second
	roundSize = 64 // statements between two commits of outcomes: what changes meanwhile waits no longer than one round
)

func registerFollowers(group job.Group, p params) {
	if p.Client == nil {
		return
	}
	heartbeat.AddRetried(group, "follow-"+kubeapi.CiliumCIDRGroups.Plural, newGroupFollower(p).run, retryMin, retryMax)
	for _, r := range []kubeapi.Resource{kubeapi.NetworkPolicies, kubeapi.CiliumNetworkPolicies, kubeapi.CiliumClusterwidePolicies} {
		f := &follower{params: p, resource: r}
		heartbeat.AddRetried(group, "follow-"+r.Plural, f.run, retryMin, retryMax)
	}
}

func registerWriter(rp reconciler.Params, p params) error {
	if p.Client == nil {
		return nil
	}
	w := &writer{p}
	_, err := heartbeat.RegisterRemote(rp, p.Table, (*statement).clone, (*statement).withStatus,
		func(s *statement) reconciler.Status { return s.Status }, w, w,
		reconciler.WithoutPruning(), // a statement goes with its object
		reconciler.WithRetry(retryMin, retryMax),
		reconciler.WithRoundLimits(roundSize, rate.NewLimiter(rate.Inf, 1)), // the client limits the requests
	)
	return err
}
