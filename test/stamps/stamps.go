// Package stamps remembers, outside of clones, what has passed: tests whose result follows from their inputs need not run again.
package stamps

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// BelievedFor is the lifetime of a pass. Inputs outside of the hash, such as the machine, change as well.
const BelievedFor = 14 * 24 * time.Hour

// Store is a folder of passes. Each is a file with a T as JSON, called by the hash of the inputs. Runs side by side may share it.
type Store[T any] struct {
	Dir string
	Now func() time.Time
}

// In returns a store below the cache folder that all clones share.
func In[T any](cache string) Store[T] {
	return Store[T]{filepath.Join(cache, "passed"), time.Now}
}

// CacheDir returns the folder that all clones share: WAGGLE_CACHE, or else "waggle" in the user's cache folder; "" if neither is known.
func CacheDir(getenv func(string) string) string {
	if dir := getenv("WAGGLE_CACHE"); dir != "" {
		return dir
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(user, "waggle")
}

// Find returns the pass of a hash. One that cannot be read, is older than [BelievedFor] or of a day to come, is none.
func (s Store[T]) Find(hash string) (passed T, ok bool) {
	path := filepath.Join(s.Dir, hash)
	info, err := os.Stat(path)
	if err != nil {
		return passed, false
	}
	text, err := os.ReadFile(path)
	if age := s.Now().Sub(info.ModTime()); err != nil || age < 0 || age > BelievedFor {
		return passed, false
	}
	var found T
	if json.Unmarshal(text, &found) != nil {
		return passed, false
	}
	return found, true
}

// Put remembers a pass. The file appears only when it is complete.
func (s Store[T]) Put(hash string, passed T) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("record the passed suites in %s: %w", s.Dir, err)
		}
	}()
	if err := s.removeOld(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(passed, "", "\t")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(s.Dir, ".stamp-")
	if err != nil {
		return err
	}
	_, err = tmp.Write(text)
	if err = errors.Join(err, tmp.Close(), os.Chtimes(tmp.Name(), time.Time{}, s.Now())); err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(s.Dir, hash))
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // the first error is returned
	}
	return err
}

// Remove forgets what has failed since.
func (s Store[T]) Remove(hash string) error {
	if err := os.Remove(filepath.Join(s.Dir, hash)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeOld removes what no run believes any more.
func (s Store[T]) removeOld() error {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && s.Now().Sub(info.ModTime()) > BelievedFor {
			_ = os.Remove(filepath.Join(s.Dir, e.Name())) // another run may have removed it
		}
	}
	return err
}
