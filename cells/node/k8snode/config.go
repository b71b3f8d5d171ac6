package k8snode

import (
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Config configures the annotations, the taint key and the path condition.
type Config struct {
	Annotate bool   `mapstructure:"annotate-k8s-node"`
	TaintKey string `mapstructure:"agent-not-ready-taint-key"`
	Paths    bool   `mapstructure:"set-network-paths-condition"`
}

// DefaultConfig removes the taint of Cilium, writes the path condition, and no annotations.
var DefaultConfig = Config{TaintKey: "node.cilium.io/agent-not-ready", Paths: true}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("annotate-k8s-node", c.Annotate, "Write pod CIDRs, router and health addresses into annotations of the Node")
	flags.Bool("set-network-paths-condition", c.Paths, "Set the condition "+k8s.PathsCondition+" of the Node from the tests of the paths to other nodes")
	flags.String("agent-not-ready-taint-key", c.TaintKey, "Key of the taints that are removed from the Node when pods can be attached")
}

// settings is the checked form of [Config].
type settings struct {
	annotate       bool
	taintKey       string
	pathsCondition bool
}

func newSettings(c Config) (settings, error) {
	if problems := validation.IsQualifiedName(c.TaintKey); len(problems) > 0 {
		return settings{}, fmt.Errorf("--agent-not-ready-taint-key=%q: %s", c.TaintKey, problems[0])
	}
	return settings{c.Annotate, c.TaintKey, c.Paths}, nil
}
