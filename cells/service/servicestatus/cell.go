package servicestatus

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
	"github.com/waggle-net/waggle/pkg/tables/leadership"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell creates Events about annotations of Services without effect.
var Cell = cell.Module("service-status", "Events of Services",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(newTable), // only this cell writes
	cell.Invoke(
		registerFollower, // Services into statements
		registerEmitter,  // statements into Events
	),
)

// Config determines which Services are served. The flags have the same meaning as on a node.
type Config struct {
	KubeProxyReplacement bool   `mapstructure:"kube-proxy-replacement"`
	ProxyName            string `mapstructure:"k8s-service-proxy-name"`
}

// DefaultConfig has the default values of the flags.
var DefaultConfig = Config{KubeProxyReplacement: true}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("kube-proxy-replacement", c.KubeProxyReplacement, "Serve Services; false leaves all Services to a kube-proxy, and removes the entries of previous runs")
	flags.String("k8s-service-proxy-name", c.ProxyName,
		"Serve only Services with this value of the label service.kubernetes.io/service-proxy-name; empty: only those without the label")
}

type params struct {
	cell.In

	Log        *slog.Logger
	DB         *statedb.DB
	Config     Config
	Table      statedb.RWTable[*statement]
	Leadership statedb.Table[leadership.Leadership]
	Client     *kubeapi.Client
}

const (
	retryMin  = 200 * time.Millisecond
	retryMax  = 10 * time.Second
	roundSize = 64 // statements between two commits of statuses
)

func (p *params) enabled() bool { return p.Client != nil && p.Config.KubeProxyReplacement }

func registerFollower(group job.Group, p params) {
	if p.enabled() {
		watchdog.AddRetried(group, "follow-services", (&follower{p}).run, retryMin, retryMax)
	}
}

func registerEmitter(rp reconciler.Params, p params) error {
	if !p.enabled() {
		return nil
	}
	_, err := watchdog.RegisterRemote(rp, p.Table, (*statement).clone, (*statement).withStatus,
		func(s *statement) reconciler.Status { return s.Status }, newEmitter(p), nil,
		reconciler.WithoutPruning(), // Events stay until they expire
		reconciler.WithRetry(retryMin, retryMax),
		reconciler.WithRefreshing(between, rate.NewLimiter(100, 1)),         // writes messages that followed another one too soon
		reconciler.WithRoundLimits(roundSize, rate.NewLimiter(rate.Inf, 1)), // the client limits the requests
	)
	return err
}
