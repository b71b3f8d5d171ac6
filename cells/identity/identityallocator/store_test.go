package identityallocator

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// A number of this node without a file is not published, and attempts to write the file become rare. Other numbers are published.
func TestStore_FileCannotBeWritten_NumberIsWithheld(t *testing.T) {
	t.Parallel()
	r, all := newRig(t), map[string]number{}
	var blocked []string
	for id, source := range map[uint32]identities.Source{256: identities.Memory, 257: identities.Memory, 300: identities.CRD} {
		n := number{ID: id, Labels: map[string]string{"k8s:app": fmt.Sprint(id)}, Source: source}
		all[cilium.LabelsKey(n.Labels)] = n
		r.numbers.set(n)
		if id != 257 {
			blocked = append(blocked, filepath.Join(r.numbers.files.Dir(), name(id)))
		}
	}
	now := time.Unix(1_700_000_000, 0)
	attempt := func(after time.Duration) (out output, published []uint32) {
		out = output{byKey: maps.Clone(all)}
		r.store(&out, now.Add(after))
		for _, n := range out.byKey {
			published = append(published, n.ID)
		}
		slices.Sort(published)
		return out, published
	}
	for range 2 { // the second time after a success
		for _, path := range blocked {
			require.NoError(t, os.RemoveAll(path))
			require.NoError(t, os.Mkdir(path, 0o700))
		}
		for _, failed := range []struct{ at, pause time.Duration }{
			{0, minStoreRetry}, {minStoreRetry / 2, minStoreRetry}, {10 * time.Second, 10 * time.Second}, {time.Hour, maxStoreRetry},
		} {
			out, published := attempt(failed.at)
			require.Equal(t, []uint32{257, 300}, published)
			require.Equal(t, 1, out.waiting)
			require.ErrorContains(t, out.unstored, "store identity 256")
			require.ErrorContains(t, out.unstored, "store identity 300")
			require.Equal(t, now.Add(failed.at+failed.pause), out.again)
		}
		for _, path := range blocked {
			require.NoError(t, os.Remove(path))
		}
		out, published := attempt(2 * time.Hour)
		require.Equal(t, []uint32{256, 257, 300}, published)
		require.NoError(t, out.unstored)
		require.Zero(t, out.waiting)
		require.Zero(t, out.again)
		for _, path := range blocked {
			require.FileExists(t, path)
		}
		r.numbers.dirty[256], r.numbers.dirty[300] = true, true
		now = now.Add(3 * time.Hour)
	}
}

// A full disk costs a bounded number of attempts in each pass, however many files are outdated.
func TestSave_ManyErrors_EndTheAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.NoError(t, os.RemoveAll(r.numbers.files.Dir()))
	require.NoError(t, os.WriteFile(r.numbers.files.Dir(), nil, 0o600)) // the directory cannot be created
	for i := range 100 {
		_, err := r.numbers.allocate(labelsOfJob(i), identities.Memory)
		require.NoError(t, err)
	}
	require.Equal(t, maxProblems, strings.Count(r.numbers.save().Error(), "store identity"))
	require.Len(t, r.numbers.dirty, 100)
	require.NoError(t, os.Remove(r.numbers.files.Dir()))
	require.NoError(t, r.numbers.save())
	require.Empty(t, r.numbers.dirty)
}
