package pinnedmaps

// PreviousLayouts also writes a shadow map in the layout of the previous release, including the parts that the current layout lacks.
type PreviousLayouts interface {
	Maps
	// PutPrevious writes value like Put, and previous to the shadow map in the layout of the previous release. The key is the same in both layouts.
	PutPrevious(name string, key, value, previous any) error
}
