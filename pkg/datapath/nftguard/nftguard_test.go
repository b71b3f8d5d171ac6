package nftguard

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
)

var rule = Rule{Groups: []uint32{7}, Mark: 0x0f00, Mask: 0x0f00, NodeDevice: "own", PodDevice: "pods"}

func TestPrivilegedGuard_InstalledReadAndDeleted(t *testing.T) {
	t.Parallel()
	testnet.New(t).Do(func() {
		expect(t, "before", rule, false)
		for range 2 { // the second call replaces the table
			if err := Install(rule); err != nil {
				t.Error(err)
				return
			}
			expect(t, "installed", rule, true)
		}
		expect(t, "another group than wanted", Rule{Groups: []uint32{8}, Mark: 0x0f00, Mask: 0x0f00, NodeDevice: "own", PodDevice: "pods"}, false)
		expect(t, "another device than wanted", Rule{Groups: []uint32{7}, Mark: 0x0f00, Mask: 0x0f00, NodeDevice: "other", PodDevice: "pods"}, false)
		expect(t, "a rule too few", Rule{Groups: []uint32{7, 8}, Mark: 0x0f00, Mask: 0x0f00, NodeDevice: "own", PodDevice: "pods"}, false)
		marked := rule
		marked.AnyMarked = true
		expect(t, "marked packets of the groups alone", marked, false)
		if err := Install(marked); err != nil {
			t.Error(err)
		}
		expect(t, "marked packets of all devices", marked, true)
		expect(t, "rules too many", Rule{Groups: []uint32{7}, Mark: 0x0f00, Mask: 0x0f00}, false)
		for range 2 { // the second call deletes nothing
			if err := Delete(); err != nil {
				t.Error(err)
			}
			expect(t, "deleted", rule, false)
		}
	})
}

func TestPrivilegedGuard_LeavesOtherTablesAlone(t *testing.T) {
	t.Parallel()
	testnet.New(t).Do(func() {
		conn, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		other := conn.AddTable(&nftables.Table{Name: "other", Family: nftables.TableFamilyINet})
		same := conn.AddTable(&nftables.Table{Name: TableName, Family: nftables.TableFamilyIPv4})
		if err := conn.Flush(); err != nil {
			t.Error(err)
			return
		}
		if err := Install(rule); err != nil {
			t.Error(err)
		}
		if err := Delete(); err != nil {
			t.Error(err)
		}
		for _, table := range []*nftables.Table{other, same} {
			if _, err := conn.ListTableOfFamily(table.Name, table.Family); err != nil {
				t.Errorf("table %s of family %d is gone: %v", table.Name, table.Family, err)
			}
		}
	})
}

func TestPrivilegedGuard_ForeignRuleInOwnTable_IsDetected(t *testing.T) {
	t.Parallel()
	testnet.New(t).Do(func() {
		if err := Install(rule); err != nil {
			t.Error(err)
			return
		}
		conn, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		conn.InsertRule(&nftables.Rule{Table: ours(), Chain: &nftables.Chain{Name: ChainName, Table: ours()},
			Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
		if err := conn.Flush(); err != nil {
			t.Error(err)
		}
		expect(t, "with a rule before ours", rule, false)
	})
}

func expect(t *testing.T, when string, r Rule, installed bool) {
	t.Helper()
	s, err := Read(r)
	if err != nil || s.Installed != installed || s.Dropped != (Dropped{}) {
		t.Errorf("%s: read %+v, error %v; want installed %v", when, s, err, installed)
	}
}

// Changes of other tables are not reported. Changes of this table are, by any process.
func TestPrivilegedChanges_ReportOnlyOwnTable(t *testing.T) {
	t.Parallel()
	testnet.New(t).Do(func() {
		conn, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		for _, tc := range []struct {
			what     string
			do       func() error
			notified bool
		}{
			{"install", func() error { return Install(rule) }, true},
			{"another table", func() error {
				conn.AddTable(&nftables.Table{Name: "other", Family: nftables.TableFamilyINet})
				return conn.Flush()
			}, false},
			{"a table of our name in another family", func() error {
				conn.AddTable(&nftables.Table{Name: TableName, Family: nftables.TableFamilyIPv4})
				return conn.Flush()
			}, false},
			{"a rule of the agent", func() error {
				conn.FlushChain(&nftables.Chain{Name: ChainName, Table: ours()})
				return conn.Flush()
			}, true},
			{"everything", func() error { conn.FlushRuleset(); return conn.Flush() }, true},
		} {
			changes, err := OpenChanges()
			if err != nil {
				t.Error(err)
				return
			}
			if err := tc.do(); err != nil {
				t.Errorf("%s: %v", tc.what, err)
			}
			wait := 200 * time.Millisecond
			if tc.notified {
				wait = timeout
			}
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			if err := changes.Next(ctx); (err == nil) != tc.notified {
				t.Errorf("%s: %v, want to be told: %v", tc.what, err, tc.notified)
			}
			cancel()
			changes.Close()
		}
	})
}

// Parsing never reads beyond the end of a message.
func FuzzAboutOurs(f *testing.F) {
	f.Add(uint16(unix.NFNL_SUBSYS_NFTABLES<<8), []byte{1, 0, 0, 0, 11, 0, 1, 0, 'w', 'a', 'g', 'g', 'l', 'e', 0})
	f.Fuzz(func(t *testing.T, kind uint16, m []byte) {
		if aboutOurs(kind, m) && !bytes.Contains(m, []byte(TableName)) {
			t.Errorf("%x names our table", m)
		}
	})
}
