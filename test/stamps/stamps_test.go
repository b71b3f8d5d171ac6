package stamps

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestStore_FindsOnlyValidStamps(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		hash string
		text string // of the file; "" leaves it
		age  time.Duration
		want bool
	}{
		"passed":                {"hash", "", day, true},
		"passed 13 days before": {"hash", "", 13 * day, true},
		"passed 15 days before": {"hash", "", 15 * day, false},
		"passed in the future":  {"hash", "", -day, false},
		"other inputs":          {"other", "", day, false},
		"broken":                {"hash", "{", day, false},
	} {
		now := time.Now()
		s := Store[int]{filepath.Join(t.TempDir(), "new"), func() time.Time { return now }}
		if err := s.Put("hash", 3); err != nil {
			t.Fatal(err)
		}
		if c.text != "" {
			if err := os.WriteFile(filepath.Join(s.Dir, "hash"), []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		now = now.Add(c.age)
		if got, ok := s.Find(c.hash); ok != c.want || ok && got != 3 {
			t.Errorf("%s: found %v, %v, want %v", name, got, ok, c.want)
		}
	}
}

func TestStore_RemovesFailedAndOldStamps(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := Store[int]{t.TempDir(), func() time.Time { return now }}
	for _, hash := range []string{"old", "failed"} {
		if err := s.Put(hash, 1); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // what is gone can be removed
		if err := s.Remove("failed"); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := s.Find("failed"); ok {
		t.Error("what failed is believed")
	}
	now = now.Add(BelievedFor + time.Hour)
	if err := s.Put("new", 1); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(s.Dir); err != nil || len(entries) != 1 || entries[0].Name() != "new" {
		t.Errorf("the folder holds %v, %v", entries, err)
	}
}

func TestCacheDir_FollowsTheEnvironment(t *testing.T) {
	t.Parallel()
	if got := CacheDir(func(string) string { return "/x" }); got != "/x" {
		t.Errorf("WAGGLE_CACHE=/x: got %q", got)
	}
}
