package bpfmaps

// Formers also writes a shadow map in the layout of the previous release, including the parts that the current layout lacks.
type Formers interface {
	Maps
	// PutFormer writes value like Put, and former to the shadow map in the layout of the previous release. The key is the same in both layouts.
	PutFormer(name string, key, value, former any) error
}
