package endpointmanager

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/collectedendpoints"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/testseed"
)

const testInterval = 10 * time.Second

// observationOf returns the observation of a namespace whose path still has the inode and the directory of ADD.
func observationOf(n int) observation { return observation{inode: uint64(1000 + n), dir: "1:2"} }

// scene is a collector over a manager with some endpoints. Tests change its links, namespaces and pods.
type scene struct {
	*rig
	collector
	kernel   *fakeKernel
	devices  statedb.RWTable[*devices.Device]
	servers  statedb.RWTable[apiservers.Server]
	suspects map[uint16]*suspect
	now      time.Time
}

// newScene creates n endpoints with running pods: links and namespaces exist, and an API server has the pods.
func newScene(t testing.TB, n int) *scene {
	t.Helper()
	s := &scene{rig: newRig(t, t.TempDir()), suspects: map[uint16]*suspect{}, now: time.Unix(1e9, 0)}
	s.kernel = &fakeKernel{names: map[int]string{}, sees: map[string]observation{}, run: "boot-1"}
	s.rig.kernel = s.kernel
	for i := 1; i <= n; i++ {
		s.kernel.names[i], s.kernel.sees[netns(i)] = hostName(i), observationOf(i)
	}
	var err error
	s.devices, err = devices.NewTable(s.db)
	require.NoError(t, err)
	s.servers, err = apiservers.NewTable(s.db)
	require.NoError(t, err)
	collected, err := collectedendpoints.NewTable(s.db)
	require.NoError(t, err)
	s.rig.servers = s.servers
	s.collector = collector{Log: hivetest.Logger(t, hivetest.LogLevel(slog.LevelError)), Config: Config{testInterval},
		Manager: s.rig.manager, Devices: s.devices, Sources: s.sources, Collected: collected}
	require.NoError(t, s.restore(s.done))
	for i := 1; i <= n; i++ {
		q := request(i)
		q.NetnsPath, q.NetnsInode = netns(i), uint64(1000+i)
		_, err := s.Create(t.Context(), q)
		require.NoError(t, err)
		s.pod(t, i, true)
	}
	s.rig.live = noLive
	insert(t, s.db, s.spaces, &k8s.Namespace{Name: "default"})
	insert(t, s.db, s.sources, sources.Source{Table: "k8s-pods", Producer: "reflectors", State: sources.Synced})
	insert(t, s.db, s.servers, apiservers.Server{Server: "https://one", Reachable: apiservers.Yes})
	s.observe(t)
	return s
}

func netns(n int) string { return fmt.Sprintf("/run/netns/cni-%d", n) }

func insert[R any](t testing.TB, db *statedb.DB, table statedb.RWTable[R], row R) {
	t.Helper()
	txn := db.WriteTxn(table)
	defer txn.Abort()
	_, _, err := table.Insert(txn, row)
	require.NoError(t, err)
	txn.Commit()
}

func (s *scene) pod(t testing.TB, n int, there bool) {
	t.Helper()
	pod := &k8s.Pod{Namespace: "default", Name: fmt.Sprintf("pod-%d", n), UID: fmt.Sprintf("uid-%d", n)}
	txn := s.db.WriteTxn(s.pods)
	defer txn.Abort()
	var err error
	if there {
		_, _, err = s.pods.Insert(txn, pod)
	} else {
		_, _, err = s.pods.Delete(txn, pod)
	}
	require.NoError(t, err)
	txn.Commit()
}

// observe copies the links of the fake kernel to the table devices.
func (s *scene) observe(t testing.TB) {
	t.Helper()
	txn := s.db.WriteTxn(s.devices)
	defer txn.Abort()
	require.NoError(t, s.devices.DeleteAll(txn))
	for index, name := range s.kernel.names {
		_, _, err := s.devices.Insert(txn, &devices.Device{Index: index, Name: name, Type: "veth"})
		require.NoError(t, err)
	}
	txn.Commit()
}

// round runs one scan after a delay.
func (s *scene) round(t testing.TB, after time.Duration) {
	t.Helper()
	s.observe(t)
	s.now = s.now.Add(after)
	require.NoError(t, s.look(s.db.ReadTxn(), s.suspects, nil, s.now))
}

func (s *scene) endpoint(id uint16) *endpoints.Endpoint {
	ep, _, _ := s.endpoints.Get(s.db.ReadTxn(), endpoints.ByID(id))
	return ep
}

// Proofs against an endpoint, and the result after two scans.
func TestCollect_EvidenceInTwoScans_Removes(t *testing.T) {
	t.Parallel()
	unlink := func(_ testing.TB, s *scene) { delete(s.kernel.names, 1) }
	unmount := func(_ testing.TB, s *scene) { s.kernel.sees[netns(1)] = observation{dir: "1:2", gone: true} }
	unpod := func(t testing.TB, s *scene) { s.pod(t, 1, false) }
	type change = func(testing.TB, *scene)
	for name, c := range map[string]struct {
		changes    []change
		evidence   string // proofs of the removal; empty when the endpoint stays
		quarantine string
		doubt      string
	}{
		"all is well":                      {},
		"link and namespace missing":       {changes: []change{unlink, unmount}, evidence: "link,namespace"},
		"link, namespace and pod missing":  {changes: []change{unlink, unmount, unpod}, evidence: "link,namespace,pod"},
		"link deleted":                     {changes: []change{unlink}, quarantine: "link lxc000000000001 with index 1 is gone"},
		"only the pod missing":             {changes: []change{unpod}, doubt: "pod default/pod-1 is not known on this node"},
		"only the link exists":             {changes: []change{unmount, unpod}, doubt: "its namespace is no longer at /run/netns/cni-1; pod"},
		"namespace without link":           {changes: []change{unlink, unpod}, quarantine: "is gone"},
		"another namespace is at the path": {changes: []change{unlink, func(_ testing.TB, s *scene) { s.kernel.sees[netns(1)] = observation{inode: 7, dir: "1:2"} }}, evidence: "link,namespace"},
		"the kernel was started again": {changes: []change{unlink, func(t testing.TB, s *scene) {
			ep := s.endpoint(1).Clone()
			ep.Boot = "boot-0"
			require.NoError(t, s.store(ep))
		}}, evidence: "link,namespace"},
		"path of another namespace, no pod":        {changes: []change{unlink, unpod, func(_ testing.TB, s *scene) { s.kernel.sees[netns(1)] = observation{dir: "8:9", gone: true} }}, evidence: "link,pod"},
		"path of another namespace":                {changes: []change{unlink, func(_ testing.TB, s *scene) { s.kernel.sees[netns(1)] = observation{dir: "8:9", gone: true} }}, quarantine: "is gone"},
		"namespace of another pod, another path":   {changes: []change{unlink, func(_ testing.TB, s *scene) { s.kernel.sees[netns(1)] = observation{inode: 7, dir: "8:9"} }}, quarantine: "is gone"},
		"the path cannot be seen, no pod":          {changes: []change{unlink, unpod, func(_ testing.TB, s *scene) { s.kernel.sees = nil }}, evidence: "link,pod"},
		"the path cannot be seen":                  {changes: []change{unlink, func(_ testing.TB, s *scene) { s.kernel.sees = nil }}, quarantine: "is gone"},
		"link renamed":                             {changes: []change{func(_ testing.TB, s *scene) { s.kernel.names[1], s.kernel.macs = "renamed", macs(1) }, unpod, unmount}, quarantine: "is called renamed now"},
		"link recreated":                           {changes: []change{func(_ testing.TB, s *scene) { delete(s.kernel.names, 1); s.kernel.names[77] = hostName(1) }, unpod, unmount}, quarantine: "has index 77 now"},
		"another link has its index":               {changes: []change{func(_ testing.TB, s *scene) { s.kernel.names[1] = "lxcffffffffffff" }, unmount}, evidence: "link,namespace"},
		"no pod in the snapshot of a previous run": {changes: []change{unlink, unpod, func(t testing.TB, s *scene) { s.kernel.sees = nil; source(t, s, sources.Snapshot) }}, quarantine: "is gone"},
		"no pod while no server is reachable":      {changes: []change{unlink, unpod, func(t testing.TB, s *scene) { s.kernel.sees = nil; server(t, s, apiservers.No) }}, quarantine: "is gone"},
		"no pod among manifests":                   {changes: []change{unlink, unpod, func(_ testing.TB, s *scene) { s.kernel.sees = nil; s.rig.live = nil }}, quarantine: "is gone"},
		"the pod has a younger sandbox":            {changes: []change{unlink, unmount, func(t testing.TB, s *scene) { s.another(t, "uid-1"); s.kernel.sees[netns(1)] = observation{} }}, evidence: "link,pod"},
		"pod recreated with the same name":         {changes: []change{unlink, func(t testing.TB, s *scene) { s.another(t, "uid-new"); s.kernel.sees[netns(1)] = observation{} }}, evidence: "link,pod"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 2)
			s.round(t, 0)
			for _, change := range c.changes {
				change(t, s)
			}
			before := s.endpoint(1)
			s.round(t, testInterval)
			s.round(t, testInterval-1)
			require.Equal(t, before, s.endpoint(1), "one look decides nothing, nor do two that are close")
			s.round(t, 1)
			for range 3 { // further scans change nothing
				if c.evidence != "" {
					require.Nil(t, s.endpoint(1))
					require.Empty(t, s.addresses.ownerOf("10.0.0.1"))
					row, _, _ := s.Collected.Get(s.db.ReadTxn(), collectedendpoints.ByProofs(c.evidence))
					require.EqualValues(t, 1, row.Count)
					require.Contains(t, row.Last, "container-1:eth0")
				} else {
					requireMark(t, c.quarantine, s.endpoint(1).Quarantine)
					requireMark(t, c.doubt, s.endpoint(1).Doubt)
					require.NotEmpty(t, s.addresses.ownerOf("10.0.0.1"))
					require.Zero(t, s.Collected.NumObjects(s.db.ReadTxn()))
				}
				require.Empty(t, s.endpoint(2).Quarantine+s.endpoint(2).Doubt, "the other one lives")
				s.round(t, slowScanFactor*testInterval)
			}
		})
	}
}

func requireMark(t *testing.T, want, got string) {
	t.Helper()
	if want == "" {
		require.Empty(t, got)
	}
	require.Contains(t, got, want)
}

// another attaches a new sandbox of pod 1, with its own link and namespace.
func (s *scene) another(t testing.TB, uid string) {
	t.Helper()
	q := request(3)
	q.K8sPodName, q.K8sUID = "pod-1", uid
	s.kernel.names[3] = hostName(3)
	insert(t, s.db, s.pods, &k8s.Pod{Namespace: "default", Name: "pod-1", UID: uid})
	_, err := s.Create(t.Context(), q)
	require.NoError(t, err)
}

// The quarantine of an endpoint ends when its link exists again or has its name again.
func TestCollect_QuarantineEndsWithItsReason(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	s.kernel.names[1], s.kernel.macs = "renamed", macs(1)
	s.round(t, 0)
	s.round(t, testInterval)
	require.Contains(t, s.endpoint(1).Quarantine, "is called renamed now")
	s.kernel.names[1] = hostName(1)
	s.round(t, 1)
	require.Empty(t, s.endpoint(1).Quarantine)
	require.Empty(t, s.suspects)
}

// A proof that is missing in one of two scans does not count.
func TestCollect_EvidenceMissingInOneScan_Restarts(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	gone := func() { delete(s.kernel.names, 1); s.kernel.sees[netns(1)] = observation{dir: "1:2", gone: true} }
	gone()
	s.round(t, 0)
	s.kernel.names[1] = hostName(1) // a scan between the two sees the link
	s.round(t, 1)
	gone()
	s.round(t, testInterval)
	require.NotNil(t, s.endpoint(1))
	s.round(t, testInterval)
	require.Nil(t, s.endpoint(1))
}

// After a restart the rows of pods arrive after the first scans of links. The second proof still counts after one interval, without the longer pause of settled
// suspects.
func TestCollect_LateSecondEvidence_NoExtraPause(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	source(t, s, sources.Snapshot)
	delete(s.kernel.names, 1)
	s.kernel.sees[netns(1)] = observation{} // as in a container without that mount
	s.pod(t, 1, false)
	s.round(t, 0)
	s.round(t, testInterval)
	require.NotEmpty(t, s.endpoint(1).Quarantine)
	source(t, s, sources.Synced)
	s.round(t, time.Second)
	require.Equal(t, testInterval, s.pause(s.suspects))
	s.round(t, testInterval)
	require.Nil(t, s.endpoint(1))
}

// The row that reports a responsive API server may arrive after all other rows. It triggers a scan by itself.
func TestCollect_ResponsiveAPIServer_TriggersScan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 1)
		server(t, s, apiservers.No)
		delete(s.kernel.names, 1)
		s.kernel.sees[netns(1)] = observation{} // as in a container without that mount
		s.pod(t, 1, false)
		s.observe(t)
		ctx, cancel := context.WithCancel(t.Context())
		health, _ := cell.NewSimpleHealth()
		ended := make(chan error, 1)
		go func() { ended <- s.collector.run(ctx, health) }()
		time.Sleep(2*testInterval + 5*settleCollect)
		require.NotEmpty(t, s.endpoint(1).Quarantine)
		server(t, s, apiservers.Yes)
		time.Sleep(testInterval + 5*settleCollect)
		require.Nil(t, s.endpoint(1))
		cancel()
		require.NoError(t, <-ended)
	})
}

// The id of a removed endpoint is assigned to a new endpoint between two scans. Proofs against the removed endpoint do not count for the new one.
func TestCollect_ReusedID_NeedsNewEvidence(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	delete(s.kernel.names, 1)
	s.kernel.sees[netns(1)] = observation{dir: "1:2", gone: true}
	s.round(t, 0)
	require.NoError(t, s.Delete(t.Context(), "1"))
	s.lastID = 0
	q := request(1)
	q.ContainerID, q.NetnsPath, q.NetnsInode = "container-new", netns(1), 5
	s.kernel.sees[netns(1)] = observation{inode: 5, dir: "1:2"}
	_, err := s.Create(t.Context(), q)
	require.NoError(t, err)
	require.EqualValues(t, 1, s.rows()[0].ID)
	s.kernel.sees[netns(1)] = observation{dir: "1:2", gone: true}
	s.round(t, testInterval)
	require.NotNil(t, s.endpoint(1))
}

// The fields of a damaged file may be wrong, so proofs do not remove its endpoint.
func TestCollect_DamagedFile_KeepsEndpoint(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	require.NoError(t, s.manager.mark(s.endpoint(1), damaged, ""))
	delete(s.kernel.names, 1)
	s.kernel.sees[netns(1)] = observation{dir: "1:2", gone: true}
	s.pod(t, 1, false)
	for range 4 {
		s.round(t, testInterval)
	}
	require.Equal(t, damaged, s.endpoint(1).Quarantine)
}

// While the kernel cannot be read, no endpoint is evaluated and previous proofs do not count.
func TestCollect_UnreadableKernel_ResetsEvidence(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	names := s.kernel.names
	s.kernel.names, s.kernel.err = nil, os.ErrDeadlineExceeded
	s.observe(t)
	for range 3 {
		s.now = s.now.Add(testInterval)
		require.ErrorIs(t, s.look(s.db.ReadTxn(), s.suspects, nil, s.now), os.ErrDeadlineExceeded)
	}
	s.kernel.names, s.kernel.err = names, nil
	s.round(t, testInterval)
	require.Empty(t, s.endpoint(1).Quarantine)
}

// Links, namespaces and pods are removed and added in random order. An endpoint whose link or namespace existed at any time during an interval is not removed
// in it. A removed endpoint had two proofs for the whole interval.
func TestCollect_RandomChanges_KeepLiveEndpoints(t *testing.T) {
	t.Parallel()
	r := testseed.New(t)
	const pods = 6
	s := newScene(t, pods)
	type world struct{ link, space, pod bool }
	living := map[int]world{}
	lastSeen := map[int]time.Time{} // last time at which the link or the namespace existed
	for i := 1; i <= pods; i++ {
		living[i], lastSeen[i] = world{true, true, true}, s.now
	}
	removed := 0
	for range 1000 {
		i := 1 + r.IntN(pods)
		w := living[i]
		w.link, w.space, w.pod = r.IntN(3) == 0, r.IntN(3) == 0, r.IntN(2) == 0
		living[i] = w
		delete(s.kernel.names, i)
		if w.link {
			s.kernel.names[i] = hostName(i)
		}
		s.kernel.sees[netns(i)] = observation{dir: "1:2", gone: true}
		if w.space {
			s.kernel.sees[netns(i)] = observationOf(i)
		}
		s.pod(t, i, w.pod)
		s.round(t, time.Duration(r.IntN(int(testInterval))))
		for n := 1; n <= pods; n++ {
			if living[n].link || living[n].space {
				lastSeen[n] = s.now
			}
			if s.endpoint(uint16(n)) != nil || s.addresses.ownerOf(fmt.Sprintf("10.0.0.%d", n)) == "" && lastSeen[n].IsZero() {
				continue
			}
			require.GreaterOrEqual(t, s.now.Sub(lastSeen[n]), testInterval, "endpoint %d", n)
			removed++
			s.kernel.names[n], s.kernel.sees[netns(n)] = hostName(n), observationOf(n)
			s.pod(t, n, true)
			living[n], lastSeen[n] = world{true, true, true}, s.now
			s.lastID = uint16(n - 1)
			q := request(n)
			q.NetnsPath, q.NetnsInode = netns(n), uint64(1000+n)
			_, err := s.Create(t.Context(), q)
			require.NoError(t, err)
		}
	}
	require.NotZero(t, removed, "nothing was ever removed")
}

func TestVerify_RewritesRemovedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 3)
	r := started(t, dir)
	require.NoError(t, os.Remove(path(dir, "2.json")))
	var found repairs
	require.NoError(t, r.verifyFiles(&found))
	require.Len(t, found.found, 1)
	require.Equal(t, "2.json", found.found[0].What)
	require.NoError(t, os.RemoveAll(path(dir, "")))
	require.NoError(t, r.verifyFiles(&found))
	require.Len(t, found.found, 4)
	require.NoError(t, r.verifyFiles(&found))
	require.Len(t, found.found, 4, "all is well now")
	require.Len(t, started(t, dir).rows(), 3)
}

func source(t testing.TB, s *scene, state sources.State) {
	t.Helper()
	insert(t, s.db, s.sources, sources.Source{Table: "k8s-pods", Producer: "snapshot", State: state})
}

func server(t testing.TB, s *scene, reach apiservers.Reach) {
	t.Helper()
	insert(t, s.db, s.servers, apiservers.Server{Server: "https://one", Reachable: reach})
}

func macs(n int) map[int]mac.Addr { return map[int]mac.Addr{n: request(n).HostMAC} }

// noLive is an API server that has no pod beyond the rows of the watch.
func noLive(context.Context, string, string) (*k8s.Pod, error) { return nil, errUnused }
