package deletequeue

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// enqueue opens the queue for each id, as every DEL does.
func enqueue(t *testing.T, dir string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		q, err := Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Enqueue(Entry{ContainerID: id}); err != nil {
			t.Fatal(err)
		}
		_ = q.Close()
	}
}

// replayAll returns the entries that a replay deletes, sorted.
func replayAll(t *testing.T, dir string) []string {
	t.Helper()
	var ids []string
	release, err := Replay(t.Context(), dir, func(_ context.Context, e Entry) error {
		id := e.String()
		ids = append(ids, id)
		return nil
	})
	defer release()
	if err != nil {
		t.Error(err)
	}
	slices.Sort(ids)
	return ids
}

func TestOpen_WithoutStateDirectory(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "waggle")
	if _, err := Open(t.Context(), filepath.Join(state, "queue")); !errors.Is(err, ErrNoState) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state directory was created: %v", err)
	}
}

func TestReplay_PassesEachEntryOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "queue")
	enqueue(t, dir, "b", "a", "b", "a")
	if got := replayAll(t, dir); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got %v", got)
	}
	if got := replayAll(t, dir); len(got) != 0 {
		t.Errorf("the second replay gave %v", got)
	}
}

func TestEnqueue_WritesTheDocumentedFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	enqueue(t, dir, "abc")
	// The output of sha256sum for the content.
	const name = "ca3d0dc2900b429cc3717396dc059b05cb3af7e094f0b159ad2d331afddc8007.delete"
	entries, err := list(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("entries %v, %v", entries, err)
	}
	content, _ := os.ReadFile(entries[0])
	if string(content) != `{"container-id":"abc"}` {
		t.Errorf("content %s", content)
	}
	if filepath.Base(entries[0]) != name {
		t.Errorf("name %s", entries[0])
	}
	info, _ := os.Stat(entries[0])
	if info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v", info.Mode())
	}
}

func TestEnqueue_IsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var ids []string
	for i := range MaxEntries {
		ids = append(ids, fmt.Sprint("c", i))
	}
	enqueue(t, dir, ids...)
	q, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if err := q.Enqueue(Entry{ContainerID: "one-more"}); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
	if err := q.Enqueue(Entry{ContainerID: "c7", NewestInterface: 9}); err != nil {
		t.Errorf("an entry that is there already: %v", err)
	}
}

func TestEnqueue_SameAttachment_ReplacesEntry(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	q, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, newest := range []int{7, 9} {
		if err := q.Enqueue(Entry{ContainerID: "c", IfName: "eth0", NewestInterface: newest}); err != nil {
			t.Fatal(err)
		}
	}
	_ = q.Close()
	var got []Entry
	release, err := Replay(t.Context(), dir, func(_ context.Context, e Entry) error { got = append(got, e); return nil })
	defer release()
	if err != nil || len(got) != 1 || got[0].NewestInterface != 9 {
		t.Errorf("replayed %+v, error %v", got, err)
	}
	if e := got[0]; !e.AppliesTo(9) || e.AppliesTo(10) || !(Entry{}).AppliesTo(10) {
		t.Error("an entry means host ends that existed when it was made, and no later ones")
	}
}

// An entry that cannot be opened because no file descriptor is free may be valid, so it stays.
func TestReplay_KeepsUnopenableEntries(t *testing.T) {
	if os.Getenv(limitEnv) != "" {
		withoutDescriptors(os.Getenv(limitEnv))
		return
	}
	t.Parallel()
	dir := t.TempDir()
	enqueue(t, dir, "a")
	cmd := exec.Command(os.Args[0], "-test.run=TestReplay_KeepsUnopenableEntries")
	cmd.Env = append(os.Environ(), limitEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "too many open files") {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := replayAll(t, dir); !slices.Equal(got, []string{"a"}) {
		t.Errorf("left: %v", got)
	}
}

// limitEnv is the environment variable with the directory of a queue that the test program replays without a free descriptor for its entries.
const limitEnv = "DELETEQUEUE_TEST_LIMIT"

func withoutDescriptors(dir string) {
	first, err := os.Open(dir) // from here on the Go runtime has its own descriptors
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_ = first.Close()
	var release func()
	for limit := uint64(3); limit < 64; limit++ { // the lowest limit that suffices for the lock and the list
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: 1024}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		release, err = Replay(context.Background(), dir, func(context.Context, Entry) error { return nil })
		if !errors.Is(err, ErrNotLocked) {
			break
		}
	}
	release()
	fmt.Println(err)
}

func TestReplay_QuarantinesUnreadableKeepsFailed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	enqueue(t, dir, "good", "stubborn")
	for name, content := range map[string]string{
		"empty.delete": "", "half.delete": `{"container-id":"a`, "path.delete": `{"container-id":"../x"}`,
		"huge.delete": strings.Repeat("x", maxEntrySize+1), "old.delete": "container-id:legacy\n",
		tempPattern + "123": "left by a killed plugin", "notes.txt": "not ours",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var ids []string
	busy := errors.New("busy")
	release, err := Replay(t.Context(), dir, func(_ context.Context, e Entry) error {
		id := e.String()
		if id == "stubborn" {
			return busy
		}
		ids = append(ids, id)
		return nil
	})
	release()
	slices.Sort(ids)
	if !slices.Equal(ids, []string{"good", "legacy"}) {
		t.Errorf("deleted %v", ids)
	}
	if !errors.Is(err, busy) || strings.Count(err.Error(), badSuffix) != 4 {
		t.Errorf("errors: %v", err)
	}
	files, _ := os.ReadDir(dir)
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	for _, want := range []string{"empty.delete.bad", "half.delete.bad", "path.delete.bad", "huge.delete.bad", "notes.txt", lockName} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is missing in %v", want, names)
		}
	}
	if len(names) != 7 { // the entry "stubborn" as well
		t.Errorf("files: %v", names)
	}
	if got := replayAll(t, dir); !slices.Equal(got, []string{"stubborn"}) {
		t.Errorf("the next replay gave %v", got)
	}
}

func TestLock_SharedTogetherExclusiveAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatalf("two plugins at once: %v", err)
	}
	brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	never := func(context.Context, Entry) error { t.Error("replayed without the lock"); return nil }
	enqueueLocked(t, a)
	if release, err := Replay(brief, dir, never); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("replay under a plugin's lock: %v", err)
		release()
	}
	_, _ = a.Close(), b.Close()
	release, err := Replay(t.Context(), dir, func(context.Context, Entry) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	brief, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Open(brief, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a plugin got the queue before the agent listened: %v", err)
	}
	release()
	c, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatalf("after release: %v", err)
	}
	_ = c.Close()
}

func enqueueLocked(t *testing.T, q *Queue) {
	t.Helper()
	if err := q.Enqueue(Entry{ContainerID: "x"}); err != nil {
		t.Fatal(err)
	}
}

// holdEnv is the environment variable with the directory whose lock the test program holds, as another process.
const holdEnv = "DELETEQUEUE_TEST_HOLD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdEnv); dir != "" {
		release, err := Replay(context.Background(), dir, func(context.Context, Entry) error { return nil })
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("holding")
		time.Sleep(time.Hour) // the test kills this process
		release()
		return
	}
	os.Exit(m.Run())
}

// An agent that is killed during a replay must not leave the lock behind.
func TestLock_EndsWithItsProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	holder := exec.Command(self)
	holder.Env = append(os.Environ(), holdEnv+"="+dir)
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Process.Kill() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "holding\n" {
		t.Fatalf("the holder said %q, %v", line, err)
	}
	brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Open(brief, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the lock of another process did not hold: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = holder.Process.Kill() })
	q, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatalf("after the death of the holder: %v", err)
	}
	_ = q.Close()
	_ = holder.Wait()
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"container-id":"abc"}`))
	f.Add([]byte(`{"container-id":"abc","interface-name":"eth0"}`))
	f.Add([]byte(`container-id:abc`))
	f.Add([]byte(`{"container-id":"../../etc"}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		id, err := parse(content)
		if err != nil {
			return
		}
		again, err := format(id)
		if err != nil {
			t.Fatalf("accepted %q, which cannot be written: %v", id, err)
		}
		if back, err := parse(again); err != nil || back != id {
			t.Errorf("%q came back as %q, %v", id, back, err)
		}
	})
}

// A container may have several interfaces, and a DEL is for one of them.
func TestEntry_OfOneInterface(t *testing.T) {
	t.Parallel()
	content, err := format(Entry{ContainerID: "abc", IfName: "net1"})
	if err != nil || string(content) != `{"container-id":"abc","interface-name":"net1"}` {
		t.Errorf("content %s, %v", content, err)
	}
	if e, err := parse(content); err != nil || e.String() != "abc:net1" {
		t.Errorf("read as %s, %v", e, err)
	}
	for _, name := range []string{"a/b", "a:b", "a b", "sixteen-letters-", "\x1b[31m", "\xff"} {
		if _, err := format(Entry{ContainerID: "abc", IfName: name}); err == nil {
			t.Errorf("interface %q is accepted", name)
		}
	}
}
