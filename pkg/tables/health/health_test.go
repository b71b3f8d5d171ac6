package health

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cilium/statedb"
	"go.yaml.in/yaml/v3"

	"github.com/waggle-net/waggle/pkg/celltest"
)

// FuzzRows checks that rows survive JSON and YAML and have as many columns as their header.
func FuzzRows(f *testing.F) {
	f.Add("agent.loader", "job-x", "Degraded", "attach lxc1", "no such device", int64(0), uint64(3), true)
	f.Add("", "", "", "a: b\n\"c\"", "\x1b[31m", int64(1<<40), uint64(0), false)
	f.Fuzz(func(t *testing.T, module, component, level, message, problem string, seconds int64, count uint64, closed bool) {
		for _, s := range []string{module, component, level, message, problem} {
			if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' }) {
				return // neither JSON nor YAML can hold the value
			}
		}
		if !celltest.YAMLRoundTrips(module, component, level, message, problem) {
			return // the YAML library loses part of such a text
		}
		at := time.Unix(seconds&(1<<36-1), 0).UTC()
		roundTrip(t, Status{Module: module, Component: component, Level: Level(level), Message: message, Error: problem,
			LastOK: at, UpdatedAt: at, Count: count, Closed: closed})
		roundTrip(t, Hook{Order: int(count & 0xffff), Hook: message, Detail: component, Module: module, Start: at,
			Duration: time.Duration(seconds)})
	})
}

func roundTrip[T interface {
	TableHeader() []string
	TableRow() []string
}](t *testing.T, row T) {
	t.Helper()
	var fromJSON, fromYAML T
	if b, err := json.Marshal(row); err != nil || json.Unmarshal(b, &fromJSON) != nil || !reflect.DeepEqual(row, fromJSON) {
		t.Errorf("JSON: %+v became %+v (%v)", row, fromJSON, err)
	}
	if b, err := yaml.Marshal(row); err != nil || yaml.Unmarshal(b, &fromYAML) != nil || !reflect.DeepEqual(row, fromYAML) {
		t.Errorf("YAML: %+v became %+v (%v)", row, fromYAML, err)
	}
	if len(row.TableHeader()) != len(row.TableRow()) {
		t.Errorf("header %q, row %q", row.TableHeader(), row.TableRow())
	}
}

func TestStatus_Path(t *testing.T) {
	t.Parallel()
	s := Status{Module: "agent.loader", Component: "job-x.pod-1"}
	if got := s.Path(); !slices.Equal(got, []string{"agent", "loader", "job-x", "pod-1"}) {
		t.Errorf("path %q", got)
	}
	if got := (Status{Module: "maps"}).Path(); !slices.Equal(got, []string{"maps"}) {
		t.Errorf("path %q", got)
	}
	if s.ID() == (Status{Module: "agent", Component: "loader.job-x.pod-1"}).ID() {
		t.Error("two components share an id")
	}
}

// TestStatus_CiliumDbg reads rows as cilium-dbg does: from the id "agent" on, decoded into its own type.
func TestStatus_CiliumDbg(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table, err := NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(table)
	at := time.Unix(1, 0).UTC()
	for _, s := range []Status{{Module: "a.b", Component: "job-x.pod-1", Level: Degraded, Error: "e", UpdatedAt: at}, {Module: "z", Level: OK, UpdatedAt: at}} {
		if _, _, err := table.Insert(txn, s); err != nil {
			t.Fatal(err)
		}
	}
	type row struct {
		ID      struct{ Module, Component []string }
		Level   string
		Error   string
		Updated time.Time
	}
	var got []row
	committed := txn.Commit()
	for s := range table.LowerBound(committed, idIndex.QueryFromKey([]byte("agent"))) {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var r row
		if err := json.Unmarshal(b, &r); err != nil {
			t.Fatal(err)
		}
		got = append(got, r)
	}
	want := []row{{Level: "Degraded", Error: "e", Updated: at}, {Level: "OK", Updated: at}}
	want[0].ID.Module, want[0].ID.Component = []string{"agent", "a", "b"}, []string{"job-x", "pod-1"}
	want[1].ID.Module, want[1].ID.Component = []string{"agent", "z"}, []string{}
	if !reflect.DeepEqual(got, want) || idIndex.Name != "identifier" {
		t.Errorf("cilium-dbg reads %+v from the index %s, want %+v", got, idIndex.Name, want)
	}
	// The shell of the agent needs no root.
	if row, _, found, err := (statedb.AnyTable{Meta: table}).Get(committed, "identifier", "z/"); err != nil || !found || row.(Status).Module != "z" {
		t.Errorf("the shell finds %+v by an id: %v", row, err)
	}
}
