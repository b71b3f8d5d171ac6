package k8stables

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// source fills the tables from the directory.
type source struct {
	settings settings
	tables   *manifestTables
	past     func() bool // pods of a previous run exist
	log      *slog.Logger
}

// run reads all files when the directory changes, and at each interval of --manifests-resync-interval.
func (s *source) run(ctx context.Context, health cell.Health) error {
	if err := s.tables.waiting("the first reading of " + s.settings.dir); err != nil {
		return err
	}
	dir := &directory{path: s.settings.dir, nodeName: s.settings.nodeName}
	watch := &watcher{dir: s.settings.dir}
	defer watch.close()
	logged := 0
	for {
		watchdog.Busy(ctx)
		watchErr := watch.arm()
		documents, err := dir.read()
		if err != nil {
			// Keep the rows of the last reading: the error contains no information about objects.
			health.Degraded("read manifests", err)
			if err := s.tables.waiting(err.Error()); err != nil {
				return err
			}
		} else {
			all := merge(documents)
			if err := s.tables.commit(all, s.doubt(dir)); err != nil {
				health.Degraded("write tables", err)
				return err
			}
			logged = s.logRejects(all, logged)
			s.report(health, all, watchErr)
		}
		watchdog.IdleFor(ctx, s.settings.reread)
		if !watch.wait(ctx, s.settings.reread) {
			return nil
		}
	}
}

// doubt returns why a reading may be incomplete; empty if it is complete. Attached pods of a previous run show that the directory existed: if it is
// missing, it may not be mounted yet. An empty directory means that there are no objects.
func (s *source) doubt(dir *directory) string {
	if dir.missing && s.past() {
		return dir.path + " does not exist, but pods of the previous run do"
	}
	return ""
}

// logRejects logs the number of rejected documents when it rises, and returns it.
func (s *source) logRejects(all set, logged int) int {
	count, first := all.rejects()
	if count > logged {
		s.log.Warn("Objects in manifests are rejected, see the table manifests", "count", count,
			"file", first.File, "line", first.Line, "reason", first.Reason)
	}
	return count
}

func (s *source) report(health cell.Health, all set, watchErr error) {
	if watchErr != nil {
		health.Degraded(fmt.Sprintf("changes are seen only every %v", s.settings.reread), watchErr)
		return
	}
	if count, first := all.rejects(); count > 0 {
		health.Degraded(fmt.Sprintf("%d objects rejected, see the table manifests", count),
			fmt.Errorf("%s line %d: %s", first.File, first.Line, first.Reason))
		return
	}
	health.OK(fmt.Sprintf("%d documents", len(all.manifests)))
}
