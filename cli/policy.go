package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/policies"
)

func (a *app) policyCommand() *cobra.Command {
	group := &cobra.Command{Use: "policy", Short: "Show network policies, and explain their verdicts"}
	list := a.simple("list", "List the policies, with the parts that are not enforced", a.policyList)
	get := &cobra.Command{
		Use: "get [POLICY]", Short: "Show the policies as parsed by this agent, as JSON (or YAML)", Args: cobra.MaximumNArgs(1),
		Long: "Show the policies as parsed by this agent, as JSON (or YAML).\n\nPOLICY is NAME, NAMESPACE/NAME or \"KIND NAMESPACE/NAME\".",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, c *agentclient.Client) error { return a.policyGet(ctx, c, args) })
		},
	}
	selectors := a.simple("selectors", "List the peer selectors of policies, and the identities that they select", a.policySelectors)
	group.AddCommand(list, a.withOutput(get), selectors, a.policyExplainCommand(), a.policyWhatIfCommand())
	return group
}

func (a *app) policyList(ctx context.Context, c *agentclient.Client) error {
	rows, err := agentclient.Rows[*policies.Policy](ctx, c, "policies")
	if err != nil {
		return err
	}
	config, err := c.Config(ctx)
	if err != nil {
		return err
	}
	return a.show(rows, func(w io.Writer) {
		var lines [][]string
		for _, p := range rows {
			row := p.TableRow()
			if enforcesNothing(config) {
				row[3] = "off"
			}
			lines = append(lines, []string{row[0], row[3], row[2], row[1], row[4]})
		}
		table(w, []string{"POLICY", "MODE", "SUBJECTS", "RULES", "NOT ENFORCED"}, lines)
		for _, what := range switchedOff(config) {
			line(w, "%s", what)
		}
		for _, p := range rows {
			for _, problem := range p.Problems {
				fmt.Fprintf(w, "%s %s: %s: %s\n", printable.Text(p.Ref.String()), printable.Text(problem.Path), problem.Reason,
					printable.Text(problem.Message))
			}
		}
	})
}

func (a *app) policyGet(ctx context.Context, c *agentclient.Client, args []string) error {
	rows, err := agentclient.Rows[*policies.Policy](ctx, c, "policies")
	if err != nil {
		return err
	}
	found := []*policies.Policy{}
	for _, p := range rows {
		if len(args) == 0 || p.Ref.IsCalled(args[0]) {
			found = append(found, p)
		}
	}
	if len(found) == 0 && len(args) > 0 {
		return hinted(agentclient.ErrNotFound, "policy "+args[0], "waggle policy list")
	}
	a.output = cmp.Or(a.output, "json")
	return a.show(found, nil)
}

func (a *app) policySelectors(ctx context.Context, c *agentclient.Client) error {
	selectors, err := c.PolicySelectors(ctx)
	if err != nil {
		return err
	}
	return a.show(selectors, func(w io.Writer) {
		var rows [][]string
		for _, s := range selectors {
			rows = append(rows, []string{s.Selector, strconv.FormatInt(s.Users, 10), strconv.Itoa(len(s.Identities)), numbers(s.Identities)})
		}
		table(w, []string{"SELECTOR", "USERS", "COUNT", "IDENTITIES"}, rows)
	})
}

// numbers returns the first few numbers of a list; -o json prints all.
func numbers(list []int64) string {
	const most = 12
	texts := make([]string, 0, most)
	for _, n := range list[:min(len(list), most)] {
		texts = append(texts, strconv.FormatInt(n, 10))
	}
	if len(list) > most {
		texts = append(texts, "...")
	}
	return strings.Join(texts, ",")
}

func (a *app) policyExplainCommand() *cobra.Command {
	var p models.GetPolicyExplainParams
	cmd := &cobra.Command{
		Use: "explain", Short: "Explain whether a source may connect to a destination", Args: cobra.NoArgs,
		Long: "Explain whether a source may connect to a destination: evaluate the current policies, and compare the verdict with the kernel's.\n\n" +
			"Each of them is an address, NAMESPACE/POD, or an identity as id:NUMBER. For pods with both families IPv4 is evaluated.\n" +
			"For a service use its address: policies are evaluated for its backends, after the translation.\n" +
			"This node has policies only for its own endpoints: run the command on the other node for the other side.",
		Example: "  waggle policy explain --from shop/cart --to 10.0.1.7 --port 80/TCP\n" +
			"  waggle policy explain --from shop/cart --to 10.96.0.1 --port 80/TCP\n  waggle policy explain --from 192.0.2.1 --to shop/web --port 8/ICMP",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.From == "" || p.To == "" || p.Port == "" {
				return usage{errors.New("set --from, --to and --port, as in waggle policy explain --from shop/cart --to 10.0.1.7 --port 80/TCP")}
			}
			return a.ask(cmd, func(ctx context.Context, c *agentclient.Client) error {
				e, err := c.PolicyExplain(ctx, p)
				if err != nil {
					return err
				}
				return a.show(e, func(w io.Writer) { explanationText(w, e) })
			})
		},
	}
	cmd.Flags().StringVar(&p.From, "from", "", "Source of the connection")
	cmd.Flags().StringVar(&p.To, "to", "", "Destination of the connection")
	cmd.Flags().StringVar(&p.Port, "port", "", "PORT/PROTOCOL; for ICMP the type, as 8/ICMP")
	return a.withOutput(cmd)
}

func (a *app) policyWhatIfCommand() *cobra.Command {
	var files []string
	var change models.PolicyWhatIf
	cmd := &cobra.Command{
		Use: "what-if", Short: "Show which recorded flows of this node a change of policies would deny or allow", Args: cobra.NoArgs,
		Long: "Show which recorded flows of this node a change of policies would deny or allow. The command changes nothing.\n\n" +
			"Policies in the files replace policies of the same kind and name. Only recently recorded flows of this node are evaluated.",
		Example: "  waggle policy what-if -f new.yaml\n  waggle policy what-if --delete shop/web -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files)+len(change.Delete) == 0 {
				return usage{errors.New("set -f FILE or --delete")}
			}
			text, err := a.readFiles(files)
			if err != nil {
				return err
			}
			change.Manifests = text
			return a.ask(cmd, func(ctx context.Context, c *agentclient.Client) error {
				d, err := c.PolicyWhatIf(ctx, change)
				if err != nil {
					return err
				}
				return a.show(d, func(w io.Writer) { differenceText(w, d) })
			})
		},
	}
	cmd.Flags().StringSliceVarP(&files, "file", "f", nil, "Files with policies, as for kubectl; - is the standard input")
	cmd.Flags().StringSliceVar(&change.Delete, "delete", nil, "Policies that would be deleted: NAME, NAMESPACE/NAME or \"KIND NAMESPACE/NAME\"")
	return a.withOutput(cmd)
}

// readFiles concatenates files into one multi-document text.
func (a *app) readFiles(files []string) (string, error) {
	var all strings.Builder
	for i, file := range files {
		var data []byte
		var err error
		if file == "-" {
			data, err = io.ReadAll(a.stdin)
		} else {
			data, err = os.ReadFile(file)
		}
		if err != nil {
			return "", fmt.Errorf("read policies: %w", err)
		}
		if i > 0 {
			all.WriteString("\n---\n")
		}
		all.Write(data)
	}
	return all.String(), nil
}
