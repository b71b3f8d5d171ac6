package endpointmanager

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// leaveFile records a file that could not be removed with its endpoint. Such an endpoint would return at the next start. The caller must hold mu.
func (m *manager) leaveFile(id uint16) {
	m.leftFiles[id] = true
	select {
	case m.fileLeft <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// removeLeftFiles tries again to remove the recorded files and returns the number of remaining ones.
func (m *manager) removeLeftFiles() (remain int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.leftFiles {
		if err = m.files.Remove(fileName(id)); err == nil {
			delete(m.leftFiles, id)
		}
	}
	return len(m.leftFiles), err
}

func registerLeftFiles(jobs job.Group, m *manager) {
	watchdog.Add(jobs, "remove-left-files", m.followLeftFiles)
}

// followLeftFiles removes the files of deleted endpoints and retries with backoff.
func (m *manager) followLeftFiles(ctx context.Context, health cell.Health) error {
	for {
		watchdog.Idle(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-m.fileLeft:
		}
		watchdog.Busy(ctx)
		backoff := job.ExponentialBackoff{Min: 100 * time.Millisecond, Max: time.Minute}
		for remain, err := m.removeLeftFiles(); remain > 0; remain, err = m.removeLeftFiles() {
			health.Degraded(fmt.Sprintf("the files of %d deleted endpoints cannot be removed", remain), err)
			if watchdog.Sleep(ctx, backoff.Wait()) != nil {
				return nil
			}
		}
		health.OK("every file belongs to an endpoint")
	}
}
