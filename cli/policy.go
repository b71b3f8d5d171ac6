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
	"github.com/waggle-net/waggle/pkg/client"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/policies"
)

func (a *app) policyCommand() *cobra.Command {
	group := &cobra.Command{Use: "policy", Short: "Show network policies, and say why packets pass or not"}
	list := a.simple("list", "List the policies, with what of them is not enforced", a.policyList)
	get := &cobra.Command{
		Use: "get [POLICY]", Short: "Show the policies as this agent understands them, as JSON (or YAML)", Args: cobra.MaximumNArgs(1),
		Long: "Show the policies as this agent understands them, as JSON (or YAML).\n\nPOLICY is NAME, NAMESPACE/NAME or \"KIND NAMESPACE/NAME\".",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, c *client.Client) error { return a.policyGet(ctx, c, args) })
		},
	}
	selectors := a.simple("selectors", "List the choices of peers that policies make, and whom they choose now", a.policySelectors)
	group.AddCommand(list, a.withOutput(get), selectors, a.policyExplainCommand(), a.policyWhatIfCommand())
	return group
}

func (a *app) policyList(ctx context.Context, c *client.Client) error {
	rows, err := client.Rows[*policies.Policy](ctx, c, "policies")
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

func (a *app) policyGet(ctx context.Context, c *client.Client, args []string) error {
	rows, err := client.Rows[*policies.Policy](ctx, c, "policies")
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
		return hinted(client.ErrNotFound, "policy "+args[0], "waggle policy list")
	}
	a.output = cmp.Or(a.output, "json")
	return a.show(found, nil)
}

func (a *app) policySelectors(ctx context.Context, c *client.Client) error {
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
		Use: "explain", Short: "Say whether one may connect to another, and why", Args: cobra.NoArgs,
		Long: "Say whether one may connect to another, and why: the policies of now are asked, and what the kernel has is compared.\n\n" +
			"Each of both is an address, NAMESPACE/POD, or an identity as id:NUMBER. Of pods with both families IPv4 is asked.\n" +
			"Of a service give the address: policies are judged towards the backends behind it, after the translation.\n" +
			"Only endpoints of this node have a policy here: for the other side ask on its node.",
		Example: "  waggle policy explain --from shop/cart --to 10.0.1.7 --port 80/TCP\n" +
			"  waggle policy explain --from shop/cart --to 10.96.0.1 --port 80/TCP\n  waggle policy explain --from 192.0.2.1 --to shop/web --port 8/ICMP",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.From == "" || p.To == "" || p.Port == "" {
				return usage{errors.New("give --from, --to and --port, as in waggle policy explain --from shop/cart --to 10.0.1.7 --port 80/TCP")}
			}
			return a.ask(cmd, func(ctx context.Context, c *client.Client) error {
				e, err := c.PolicyExplain(ctx, p)
				if err != nil {
					return err
				}
				return a.show(e, func(w io.Writer) { explanationText(w, e) })
			})
		},
	}
	cmd.Flags().StringVar(&p.From, "from", "", "Who connects")
	cmd.Flags().StringVar(&p.To, "to", "", "Who is connected to")
	cmd.Flags().StringVar(&p.Port, "port", "", "PORT/PROTOCOL; of ICMP the type, as 8/ICMP")
	return a.withOutput(cmd)
}

func (a *app) policyWhatIfCommand() *cobra.Command {
	var files []string
	var change models.PolicyWhatIf
	cmd := &cobra.Command{
		Use: "what-if", Short: "Say which recorded flows of this node a change of policies would deny or allow", Args: cobra.NoArgs,
		Long: "Say which recorded flows of this node a change of policies would deny or allow. Nothing is changed.\n\n" +
			"Policies of the files replace those of the same kind and name. What was not seen lately on this node is not judged.",
		Example: "  waggle policy what-if -f new.yaml\n  waggle policy what-if --delete shop/web -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files)+len(change.Delete) == 0 {
				return usage{errors.New("give policies with -f FILE, or --delete")}
			}
			text, err := a.readFiles(files)
			if err != nil {
				return err
			}
			change.Manifests = text
			return a.ask(cmd, func(ctx context.Context, c *client.Client) error {
				d, err := c.PolicyWhatIf(ctx, change)
				if err != nil {
					return err
				}
				return a.show(d, func(w io.Writer) { differenceText(w, d) })
			})
		},
	}
	cmd.Flags().StringSliceVarP(&files, "file", "f", nil, "Files of policies as for kubectl; - is the standard input")
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
