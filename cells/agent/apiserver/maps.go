package apiserver

import (
	"errors"
	"net/http"
	"path"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
)

// GetMap lists the maps without their entries.
func (a *api) GetMap(w http.ResponseWriter, _ *http.Request) {
	list := models.BPFMapList{Maps: []models.BPFMap{}}
	for m := range a.Maps.All(a.DB.ReadTxn()) {
		list.Maps = append(list.Maps, models.BPFMap{Path: m.Pin})
	}
	respond(w, http.StatusOK, list)
}

// GetMapName returns the entries of a map, read from the kernel.
func (a *api) GetMapName(w http.ResponseWriter, _ *http.Request, name string) {
	row := a.mapNamed(name)
	if row == nil {
		respond(w, http.StatusNotFound, nil)
		return
	}
	entries, err := a.MapReader.Entries(row.Name)
	switch {
	case errors.Is(err, pinnedmaps.ErrUnknown):
		respond(w, http.StatusNotFound, nil)
	case err != nil:
		fail(w, http.StatusInternalServerError, err)
	default:
		respond(w, http.StatusOK, models.BPFMap{Path: row.Pin, Cache: entryModels(entries)})
	}
}

// mapNamed finds a map by its name, or by the name of its pin, which cilium-dbg map list shows; nil without a match.
func (a *api) mapNamed(name string) *bpfmaps.Map {
	txn := a.DB.ReadTxn()
	if row, _, found := a.Maps.Get(txn, bpfmaps.ByName(name)); found {
		return row
	}
	for row := range a.Maps.All(txn) {
		if path.Base(row.Pin) == name {
			return row
		}
	}
	return nil
}

func entryModels(entries []pinnedmaps.Entry) []models.BPFMapEntry {
	out := make([]models.BPFMapEntry, 0, len(entries))
	for _, e := range entries {
		out = append(out, models.BPFMapEntry{Key: e.Key, Value: e.Value, DesiredAction: models.BPFMapEntryDesiredActionOk})
	}
	return out
}
