package apiserver

import (
	"cmp"
	"net/http"
	"path/filepath"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/datapath/cgroups"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// GetCgroupDumpMetadata returns the control groups of the containers of this node's pods.
func (a *api) GetCgroupDumpMetadata(w http.ResponseWriter, _ *http.Request) {
	root, err := a.cgroupRoot()
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	groups, err := cgroups.Pods(root)
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	respond(w, http.StatusOK, a.cgroupsOf(a.DB.ReadTxn(), root, groups))
}

// cgroupRoot returns the control group whose sockets are translated by socket load balancing.
func (a *api) cgroupRoot() (string, error) {
	if named, _ := a.Flags["cgroup-root"].(string); named != "" {
		return cgroups.Resolve(named)
	}
	return cgroups.Root()
}

// cgroupsOf describes the groups. It omits groups of pods without a row on this node.
func (a *api) cgroupsOf(txn statedb.ReadTxn, root string, groups []cgroups.Pod) models.CgroupDumpMetadata {
	pods := map[string]*k8s.Pod{} // by the UID that kubelet uses
	for p := range a.Policy.Pods.All(txn) {
		if p.NodeName == a.Settings.NodeName {
			pods[cmp.Or(p.StaticUID, p.UID)] = p
		}
	}
	dump := models.CgroupDumpMetadata{PodMetadatas: []models.CgroupPodMetadata{}}
	for _, group := range groups {
		p := pods[group.UID]
		if p == nil {
			continue
		}
		pod := models.CgroupPodMetadata{Name: p.Name, Namespace: p.Namespace}
		for _, addr := range p.PodIPs {
			pod.Ips = append(pod.Ips, addr.String())
		}
		for _, c := range group.Containers {
			pod.Containers = append(pod.Containers, models.CgroupContainerMetadata{CgroupID: c.ID, CgroupPath: filepath.Join(root, c.Path)})
		}
		dump.PodMetadatas = append(dump.PodMetadatas, pod)
	}
	return dump
}
