package endpointmanager

import "errors"

// maxReports limits the lines that a start logs about bad files. One more line counts the rest.
const maxReports = 16

// repairFiles keeps damaged files in bad/, logs them, and writes new files for the salvaged endpoints, so that the next start restores them too.
func (m *manager) repairFiles(list []found) {
	reports := 0
	for _, f := range list {
		if f.damage == nil && (f.ep == nil || f.ep.Quarantine == "") {
			continue
		}
		kept, err := m.repair(f)
		if reports++; reports > maxReports {
			continue
		}
		attrs := []any{"file", f.name}
		if f.damage != nil {
			attrs = append(attrs, "reason", f.damage, "keptAs", kept)
		}
		if err != nil {
			attrs = append(attrs, "error", err)
		}
		if f.ep != nil {
			attrs = append(attrs, "endpointID", f.ep.ID, "quarantine", f.ep.Quarantine)
		}
		m.log.Warn("A restored endpoint cannot be used as it is", attrs...)
	}
	if reports > maxReports {
		m.log.Warn("More restored endpoints cannot be used", "count", reports-maxReports)
	}
}

func (m *manager) repair(f found) (kept string, err error) {
	if f.damage == nil {
		return "", nil
	}
	if f.ep == nil {
		return m.files.Quarantine(f.name)
	}
	target := fileName(f.ep.ID)
	if f.name == target {
		kept, err = m.files.Preserve(f.name)
		return kept, errors.Join(err, m.files.Write(target, f.ep))
	}
	if err := m.files.Write(target, f.ep); err != nil {
		return "", err
	}
	return m.files.Quarantine(f.name)
}
