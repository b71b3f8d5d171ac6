package figures

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// Row is one measured figure.
type Row struct {
	Part    string  `json:"part"`
	What    string  `json:"what"`
	Waggle  string  `json:"waggle"`            // text in the table, often with a second figure in brackets
	Control string  `json:"control,omitempty"` // empty without a control
	Value   float64 `json:"value"`             // the figure that the budget limits: the ratio if there is a control
	Unit    string  `json:"unit"`
	Budget  string  `json:"budget,omitempty"`
	Missed  bool    `json:"missed"`
}

// Sheet collects rows in the order of their measurement.
type Sheet struct {
	part string
	rows []Row
}

// Begin sets the part of the benchmark for subsequent rows.
func (s *Sheet) Begin(part string) { s.part = part }

// Add adds a figure: its text in the table, the control's text or "", and the value that the budget limits.
func (s *Sheet) Add(what, shown, control string, value Value, budget Limit) {
	row := Row{Part: s.part, What: what, Waggle: shown, Control: control, Value: value.Number, Unit: value.Unit,
		Budget: budget.String(), Missed: budget.missed(value)}
	if math.IsNaN(row.Value) || math.IsInf(row.Value, 0) {
		row.Value = 0 // JSON cannot represent NaN and infinity
	}
	s.rows = append(s.rows, row)
}

// Missed returns the rows that are outside their budgets.
func (s *Sheet) Missed() (missed []Row) {
	for _, row := range s.rows {
		if row.Missed {
			missed = append(missed, row)
		}
	}
	return missed
}

// WriteTable prints all rows, then the rows that miss their budgets again.
func (s *Sheet) WriteTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "WHAT\tWAGGLE\tCONTROL\tRATIO\tBUDGET\t")
	budgets := 0
	for _, row := range s.rows {
		control, ratio, mark := "-", "-", ""
		if row.Control != "" {
			control, ratio = row.Control, fmt.Sprintf("%.3f", row.Value)
		}
		if row.Budget != "" {
			budgets++
		}
		if row.Missed {
			mark = " MISSED"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t\n", row.What, row.Waggle, control, ratio, row.Budget+mark)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	missed := s.Missed()
	_, err := fmt.Fprintf(w, "\n%d of %d budgets missed\n", len(missed), budgets)
	for _, row := range missed {
		figure := row.Waggle
		if row.Control != "" {
			figure = fmt.Sprintf("%.3f", row.Value)
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "  %s: %s, budget %s\n", row.What, figure, row.Budget)
		}
	}
	return err
}

// WriteJSON prints all rows as one array, which is empty if there are none.
func (s *Sheet) WriteJSON(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(append([]Row{}, s.rows...))
}
