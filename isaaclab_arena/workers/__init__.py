"""Programs in interpreters of their own: started, asked, watched and stopped."""
