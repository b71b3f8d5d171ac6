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

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell reports on policies which parts of them are not enforced.
var Cell = cell.Module("policy-status", "Conditions and Events of policies",
	cell.ProvidePrivate(func() servicePause { return betweenRestatements }), // tests provide another one
	implementation,
)

// implementation is the cell without the pause between statements that changes of Services cause.
var implementation = cell.Group(
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newTable, // only this cell writes
		newGroupTable,
		newServiceTable,
		newLabelFilter, // labels that are part of identities
		newL7Mode,
	),
	cell.Invoke(
		registerFollowers, // jobs: objects into statements
		registerWriter,    // statements into conditions and Events
	),
)

// Config determines which labels are part of identities, and whether ports with L7 rules are allowed. The flags have the same meaning as on a node.
type Config struct {
	Labels          string `mapstructure:"labels"`
	LabelPrefixFile string `mapstructure:"label-prefix-file"`
	L7Rules         string `mapstructure:"l7-rules"`
}

// DefaultConfig has the default values of the flags.
var DefaultConfig = Config{L7Rules: string(policy.DenyL7)}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("labels", c.Labels, "Comma- or space-separated rules [source:][!]regexp that include (!: exclude) labels in identities "+
		"by the start of their key; an including rule excludes all others")
	flags.String("label-prefix-file", c.LabelPrefixFile, "JSON file with rules that replace the default ones")
	flags.String("l7-rules", c.L7Rules, policy.L7RulesUsage)
}

func newL7Mode(c Config) (policy.L7Mode, error) { return policy.ParseL7Mode(c.L7Rules) }

// labelFilter reports whether a label is part of identities. It is nil if the rules cannot be read.
type labelFilter func(label string) bool

// newLabelFilter reads the rules for labels. Their file may exist only on the nodes. A missing file must not stop the other work of this role.
func newLabelFilter(c Config, log *slog.Logger) labelFilter {
	filter, err := labels.ReadFilter(c.Labels, c.LabelPrefixFile)
	if err != nil {
		log.Warn("Policies that ask for labels outside of identities are not noticed", "error", err)
		return nil
	}
	return filter.Keeps
}

type params struct {
	cell.In

	DB         *statedb.DB
	Table      statedb.RWTable[*statement]
	Groups     statedb.RWTable[*cilium.CIDRGroup]
	Services   statedb.RWTable[*k8s.Service]
	Leadership statedb.Table[leadership.Leadership]
	Keeps      labelFilter
	L7Mode     policy.L7Mode
	Client     *kubeapi.Client
	Pause      servicePause
}

const (
	retryMin  = 200 * time.Millisecond
	retryMax  = 10 * time.Second
	roundSize = 64 // statements between two commits of statuses; a change waits for at most one round
)

func registerFollowers(group job.Group, p params) {
	if p.Client == nil {
		return
	}
	watchdog.AddRetried(group, "follow-"+kubeapi.CiliumCIDRGroups.Plural, newGroupFollower(p).run, retryMin, retryMax)
	watchdog.AddRetried(group, "follow-"+kubeapi.Services.Plural, newServiceFollower(p).run, retryMin, retryMax)
	watchdog.AddRetried(group, "evaluate-services", newServiceEvaluator(p).run, retryMin, retryMax)
	for _, r := range []kubeapi.Resource{kubeapi.NetworkPolicies, kubeapi.CiliumNetworkPolicies, kubeapi.CiliumClusterwidePolicies} {
		f := &follower{params: p, resource: r}
		watchdog.AddRetried(group, "follow-"+r.Plural, f.run, retryMin, retryMax)
	}
}

func registerWriter(rp reconciler.Params, p params) error {
	if p.Client == nil {
		return nil
	}
	w := &writer{p}
	_, err := watchdog.RegisterRemote(rp, p.Table, (*statement).clone, (*statement).withStatus,
		func(s *statement) reconciler.Status { return s.Status }, w, w,
		reconciler.WithoutPruning(), // a statement is deleted with its object
		reconciler.WithRetry(retryMin, retryMax),
		reconciler.WithRoundLimits(roundSize, rate.NewLimiter(rate.Inf, 1)), // the client limits the requests
	)
	return err
}
