package leaderelection

import (
	"crypto/rand"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
)

// Config configures the Lease. Names and defaults are the same as in Cilium's operator.
type Config struct {
	Namespace     string        `mapstructure:"leader-election-namespace"`
	LeaseDuration time.Duration `mapstructure:"leader-election-lease-duration"`
	RenewDeadline time.Duration `mapstructure:"leader-election-renew-deadline"`
	RetryPeriod   time.Duration `mapstructure:"leader-election-retry-period"`
}

// DefaultConfig has the defaults of Cilium's operator.
var DefaultConfig = Config{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("leader-election-namespace", c.Namespace,
		"Namespace of the Lease waggle-cluster; default: environment K8S_NAMESPACE, then POD_NAMESPACE, then kube-system")
	flags.Duration("leader-election-lease-duration", c.LeaseDuration, "Time without a renewal after which another replica takes over, in whole seconds")
	flags.Duration("leader-election-renew-deadline", c.RenewDeadline, "Time without a renewal after which the leader stops its work")
	flags.Duration("leader-election-retry-period", c.RetryPeriod, "Time between two attempts to acquire or to renew the Lease")
}

// settings is the checked form of [Config].
type settings struct {
	namespace            string
	identity             string // of this process; unique
	lease, renew, period time.Duration
}

const defaultNamespace = "kube-system"

func newSettings(c Config) (settings, error) {
	s := settings{namespace: c.Namespace, lease: c.LeaseDuration, renew: c.RenewDeadline, period: c.RetryPeriod}
	for _, name := range []string{os.Getenv("K8S_NAMESPACE"), os.Getenv("POD_NAMESPACE"), defaultNamespace} {
		if s.namespace == "" {
			s.namespace = name
		}
	}
	switch {
	case c.LeaseDuration < time.Second || c.LeaseDuration%time.Second != 0:
		return settings{}, fmt.Errorf("--leader-election-lease-duration=%s: use whole seconds, at least 1s", c.LeaseDuration)
	case c.RetryPeriod <= 0:
		return settings{}, fmt.Errorf("--leader-election-retry-period=%s: must be more than 0", c.RetryPeriod)
	case c.RenewDeadline <= c.RetryPeriod*6/5:
		return settings{}, fmt.Errorf("--leader-election-renew-deadline=%s: must be more than 1.2 times --leader-election-retry-period=%s, "+
			"or there is no time for a second attempt", c.RenewDeadline, c.RetryPeriod)
	case c.LeaseDuration <= c.RenewDeadline:
		return settings{}, fmt.Errorf("--leader-election-lease-duration=%s: must be more than --leader-election-renew-deadline=%s, "+
			"or two replicas could lead at once", c.LeaseDuration, c.RenewDeadline)
	}
	name := os.Getenv("K8S_POD_NAME")
	if name == "" {
		name, _ = os.Hostname() // the rest of the identity is unique without the host name
	}
	s.identity = name + "_" + rand.Text()
	return s, nil
}
