package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/install"
)

const installHelp = `Print the manifests that install Waggle in a cluster, for kubectl:

    waggle install | kubectl apply -f -

The same command updates an installation; it does not change unchanged objects. The command itself sends nothing.

The defaults suit clusters in which the controller manager assigns a pod CIDR to each node (--allocate-node-cidrs). The agents
serve Services, so kube-proxy can be removed. Without kube-proxy, agents cannot reach the API server through its Service before
they serve it: set its address with --k8s-api-server.

--set sets options of the agents by the names of their flags; they are stored in the ConfigMap waggle-config.
Kubernetes 1.30 or newer is required.`

const installExamples = `  waggle install | kubectl apply -f -
  waggle install --set enable-ipv6=true --k8s-api-server https://192.0.2.10:6443 | kubectl apply -f -
  waggle install --only crds | kubectl apply -f -`

func (a *app) installCommand() *cobra.Command {
	var o install.Options
	cmd := &cobra.Command{
		Use:     "install",
		Short:   "Print the manifests that install Waggle in a cluster",
		Long:    installHelp,
		Example: installExamples,
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return a.install(o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Namespace, "namespace", "kube-system", "Namespace of the agents")
	flags.StringVar(&o.Image, "image", "", "Image of the agents (default waggle.local/waggle with the tag of this version, as built by make image)")
	flags.StringVar(&o.CNIBinDir, "cni-bin-dir", "/opt/cni/bin", "Directory of the nodes in which container runtimes look for CNI plugins")
	flags.StringArrayVar(&o.Set, "set", nil, "Option of the agents as `key=value`; may be repeated")
	flags.StringVar(&o.APIServer, "k8s-api-server", "", "Address of the API server for the agents (default: the Service kubernetes)")
	flags.StringSliceVar(&o.Only, "only", nil, "Print only these parts: "+strings.Join(install.Parts(), ", "))
	return a.withOutput(cmd)
}

func (a *app) install(o install.Options) error {
	if o.Image == "" {
		o.Image = install.DefaultImage()
	}
	render := install.Render
	if a.output == "json" {
		render = install.RenderJSON
	}
	text, err := render(o)
	if err != nil {
		return usage{errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))}
	}
	_, err = fmt.Fprintln(a.stdout, strings.TrimSuffix(string(text), "\n"))
	return err
}
