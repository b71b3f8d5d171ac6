package endpointmanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/statefile"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// writePreviousRun writes the files of endpoints 1 to n to dir.
func writePreviousRun(t testing.TB, dir string, n int) {
	t.Helper()
	r := started(t, dir)
	for i := 1; i <= n; i++ {
		q := request(i)
		q.Labels = []string{"container:app=web"}
		_, err := r.Create(t.Context(), q)
		require.NoError(t, err)
	}
}

func path(dir, name string) string { return filepath.Join(dir, "endpoints", name) }

func read(t testing.TB, dir, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(path(dir, name))
	require.NoError(t, err)
	return content
}

func write(t testing.TB, dir, name string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path(dir, name), content, 0o600))
}

func quarantined(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(path(dir, "bad"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	for _, e := range entries {
		_, name, _ := strings.Cut(e.Name(), "-")
		names = append(names, name)
	}
	return names
}

func TestRestore_RestoresRowsAndClaimsAddresses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 3)
	r := started(t, dir)
	rows := r.rows()
	require.Len(t, rows, 3)
	require.True(t, rows[0].Restored)
	require.Empty(t, rows[0].Quarantine)
	require.Equal(t, map[string]string{"container:app": "web"}, rows[0].Labels)
	require.Equal(t, "container-3:eth0", r.addresses.ownerOf("10.0.0.3"))
	require.True(t, r.addresses.open)
	initialized, _ := r.endpoints.Initialized(r.db.ReadTxn())
	require.True(t, initialized)
	_, err := r.Create(t.Context(), request(3))
	require.ErrorIs(t, err, endpoint.ErrExists)
	ep, err := r.Create(t.Context(), request(4))
	require.NoError(t, err)
	require.Equal(t, uint16(4), ep.ID, "ids go on behind the last")
	require.Empty(t, quarantined(t, dir))
}

// The API server stores more than a megabyte of labels for a pod and its namespace. A restart must not quarantine such a pod.
func TestRestore_MegabytesOfLabels(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := started(t, dir)
	ofNamespace := map[string]string{}
	for i := range 60_000 {
		ofNamespace[fmt.Sprintf("%08d", i)] = ""
	}
	r.setNamespace(t, &k8s.Namespace{Name: "default", Labels: ofNamespace})
	r.setPod(t, &k8s.Pod{Namespace: "default", Name: "pod-1", UID: "uid-1"})
	ep, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	require.Greater(t, len(read(t, dir, "1.json")), 2<<20)
	rows := started(t, dir).rows()
	require.Len(t, rows, 1)
	require.Empty(t, rows[0].Quarantine)
	require.Equal(t, ep.Labels, rows[0].Labels)
	require.Empty(t, quarantined(t, dir))
}

// For each length to which a file is cut, the start succeeds. If an address can be read from the rest, it is not allocated again.
func TestRestore_TruncatedFile_KeepsReadableAddress(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 1)
	whole := read(t, dir, "1.json")
	for n := range len(whole) {
		write(t, dir, "1.json", whole[:n])
		r := started(t, dir)
		part := string(whole[:n])
		require.Equal(t, strings.Contains(part, `"ipv4":"10.0.0.1"`), r.addresses.ownerOf("10.0.0.1") != "", "cut at %d", n)
		require.Equal(t, strings.Contains(part, `"ipv6":"fd00::1"`), r.addresses.ownerOf("fd00::1") != "", "cut at %d", n)
		for _, ep := range r.rows() {
			require.NotEmpty(t, ep.Quarantine)
		}
		require.Contains(t, quarantined(t, dir), "1.json")
	}
}

func TestRestore_DamagedFile_RowStaysQuarantined(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 1)
	damaged := []byte(strings.Replace(string(read(t, dir, "1.json")), `"pod-1"`, `"pod-x"`, 1))
	write(t, dir, "1.json", damaged)
	for range 2 {
		r := started(t, dir)
		require.Len(t, r.rows(), 1)
		ep := r.rows()[0]
		require.Contains(t, ep.Quarantine, "state file is damaged")
		require.Equal(t, "container-1:eth0", ep.AttachmentID())
		require.Equal(t, "container-1:eth0", r.addresses.ownerOf("10.0.0.1"))
		require.Equal(t, hostName(1), ep.HostIfName)
	}
	require.Equal(t, []string{"1.json"}, quarantined(t, dir), "set aside once")
	r := started(t, dir)
	n, err := r.DeleteContainer(t.Context(), "container-1")
	require.NoError(t, err)
	require.Equal(t, 1, n, "the runtime's DEL ends the quarantine")
	r.requireEmpty(t)
}

func TestRestore_UnknownFilesAreQuarantined(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 1)
	write(t, dir, "README", []byte("hello"))
	write(t, dir, "2.json", []byte(`{"ID":2,"IPv4":"10.0.0.9"}`))
	write(t, dir, "3.json", nil)
	write(t, dir, "4.json", []byte{0x7f, 'E', 'L', 'F'})
	write(t, dir, ".tmp-123", []byte("half"))
	require.NoError(t, os.Mkdir(path(dir, "5.json"), 0o700))
	r := started(t, dir)
	require.Len(t, r.rows(), 1)
	require.Equal(t, []string{"1.json"}, r.fileNames(t))
	require.ElementsMatch(t, []string{"README", "2.json", "3.json", "4.json", "5.json"}, quarantined(t, dir))
}

func TestRestore_CopyUnderOtherName_KeepsOriginal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 1)
	for _, name := range []string{"1.json.bak", "7.json", "01.json", "4096.json"} {
		write(t, dir, name, read(t, dir, "1.json"))
	}
	r := started(t, dir)
	require.Len(t, r.rows(), 1)
	require.Empty(t, r.rows()[0].Quarantine)
	require.Equal(t, []string{"1.json"}, r.fileNames(t))
	require.Len(t, quarantined(t, dir), 4)
}

func TestRestore_AddressConflict_NewerFileWins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 2)
	var second endpoints.Endpoint
	document, err := statefile.Decode(fileKind, read(t, dir, "2.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(document, &second))
	second.IPv4 = netip.MustParseAddr("10.0.0.1")
	require.NoError(t, statefile.New(filepath.Join(dir, "endpoints"), fileKind).Write("2.json", &second))

	r := started(t, dir)
	rows := r.rows()
	require.Len(t, rows, 2)
	require.Contains(t, rows[0].Quarantine, "address 10.0.0.1 belongs to endpoint 2")
	require.False(t, rows[0].IPv4.IsValid())
	require.Empty(t, rows[1].Quarantine)
	require.Equal(t, "container-2:eth0", r.addresses.ownerOf("10.0.0.1"))
	require.Equal(t, "container-1:eth0", r.addresses.ownerOf("fd00::1"))
}

func TestRestore_MissingLink_QuarantinedUntilLinkExists(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 2)
	r := newRig(t, dir)
	r.kernel = &fakeKernel{names: map[int]string{1: hostName(1), 2: "eth7"}}
	require.NoError(t, r.restore(r.done))
	require.Empty(t, r.rows()[0].Quarantine)
	require.Contains(t, r.rows()[1].Quarantine, "link "+hostName(2)+" with index 2 is gone")
	require.NotEmpty(t, r.addresses.ownerOf("10.0.0.2"))
	require.Empty(t, started(t, dir).rows()[1].Quarantine, "the reason is found anew at each start")
}

func TestRestore_LinkListFails_QuarantinesNoEndpoint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 1)
	r := newRig(t, dir)
	r.kernel = &fakeKernel{err: errors.New("no netlink")}
	require.NoError(t, r.restore(r.done))
	require.Empty(t, r.rows()[0].Quarantine)
}

func TestRestore_AddressOfOtherOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePreviousRun(t, dir, 1)
	r := newRig(t, dir)
	router := netip.MustParseAddr("10.0.0.1")
	r.addresses.claimed[router] = "router"
	r.kernel = &fakeKernel{names: map[int]string{1: hostName(1)}}
	require.NoError(t, r.restore(r.done))
	require.Contains(t, r.rows()[0].Quarantine, "its address is taken")
	require.NoError(t, r.Delete(t.Context(), "1"))
	require.Equal(t, "router", r.addresses.ownerOf("10.0.0.1"), "deletion does not release an address of another owner")
}

func TestRestore_UnreadableDirectory_FailsStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "endpoints"), nil, 0o600))
	r := newRig(t, dir)
	r.kernel = &fakeKernel{}
	require.ErrorContains(t, r.restore(r.done), "restore endpoints")
	require.False(t, r.addresses.open, "allocations are not permitted")
}

func FuzzSalvage(f *testing.F) {
	f.Add([]byte(`{"containerID":"a","ifName":"eth0","ipv4":"10.0.0.1","hostIfIndex":7,"createdAt":"2026-01-01T00:00:00Z"`))
	f.Add([]byte(`"ipv6":"fe80::1%eth0"`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		ep := salvage(raw, 1)
		if ep == nil {
			return
		}
		if ep.Quarantine == "" || ep.IPv4.IsValid() && !ep.IPv4.Is4() || ep.IPv6.IsValid() && !isIPv6(ep.IPv6) {
			t.Fatalf("salvaged %+v", ep)
		}
		if _, err := json.Marshal(ep); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkRestore250(b *testing.B) {
	dir := b.TempDir()
	writePreviousRun(b, dir, 250)
	for b.Loop() {
		b.StopTimer()
		r := newRig(b, dir)
		r.kernel = &fakeKernel{names: allLinks()}
		b.StartTimer()
		require.NoError(b, r.restore(r.done))
	}
}

// A clock that jumps back or forward between two endpoints changes neither their order nor the next id.
func TestRestore_ClocksJump(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := started(t, dir)
	for n, year := range []int{2040, 1970, 2026} {
		q := request(n + 1)
		q.K8sPodName = "same"
		ep, err := r.Create(t.Context(), q)
		require.NoError(t, err)
		changed := ep.Clone()
		changed.CreatedAt = time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		require.NoError(t, r.store(changed))
	}
	r = started(t, dir)
	ep, err := r.Lookup("pod-name:default/same")
	require.NoError(t, err)
	require.Equal(t, "container-3", ep.ContainerID, "the sandbox that was made last")
	ep, err = r.Create(t.Context(), request(4))
	require.NoError(t, err)
	require.Equal(t, uint16(4), ep.ID)
	require.Equal(t, uint64(4), ep.Serial)
}

// A file that cannot be read is not treated as damaged: if it were moved to bad/, its addresses would be lost.
func TestRestore_UnreadableFile_FailsStartAndIsKept(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"no descriptor": syscall.EMFILE, "a bad disk": syscall.EIO, "no right": syscall.EACCES} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := readable([]statefile.File{{Name: "1.json"}, {Name: "2.json", Err: fmt.Errorf("open: %w", failure)}})
			require.ErrorIs(t, err, failure)
			require.ErrorContains(t, err, "2.json")
			require.ErrorContains(t, err, "its addresses are unknown")
		})
	}
	require.NoError(t, readable([]statefile.File{{Err: statefile.ErrCorrupt}, {Err: statefile.ErrForeign}, {Err: syscall.ENOENT}}))
}
