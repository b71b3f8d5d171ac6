package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"github.com/waggle-net/waggle/pkg/printable"
)

// show prints a value as JSON or YAML when -o asks for it, and otherwise calls text.
func (a *app) show(value any, text func(io.Writer)) error {
	switch a.output {
	case "json":
		enc := json.NewEncoder(a.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(value)
	case "yaml":
		data, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(data)
		return err
	}
	text(a.stdout)
	return nil
}

// table prints rows in columns. Cells are escaped; an empty cell becomes a dash.
func table(w io.Writer, header []string, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(header, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = printable.Text(cell); cell == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	_ = tw.Flush() // an error of stdout cannot be reported anywhere else
}

// printableLine is printable.Text for a line with columns: it keeps tabs.
func printableLine(line string) string {
	parts := strings.Split(line, "\t")
	for i := range parts {
		parts[i] = printable.Text(parts[i])
	}
	return strings.Join(parts, "\t")
}
