package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"sigs.k8s.io/yaml"
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

// table prints rows in columns. Cells are made printable; an empty one is a dash.
func table(w io.Writer, header []string, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(header, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = printable(cell); cell == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	_ = tw.Flush() // errors of stdout show up nowhere better
}

// printable escapes what could move the cursor, change colours or break a column: names come from outside.
func printable(s string) string {
	if !strings.ContainsFunc(s, unprintable) && strings.ToValidUTF8(s, "") == s {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == unicode.ReplacementChar && !strings.HasPrefix(s[i:], string(unicode.ReplacementChar)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unprintable(r):
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// unprintable runes: control characters, and those that reorder text.
func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// printableLine is printable for a line that the agent has laid out in columns: it may hold tabs.
func printableLine(line string) string {
	parts := strings.Split(line, "\t")
	for i := range parts {
		parts[i] = printable(parts[i])
	}
	return strings.Join(parts, "\t")
}
