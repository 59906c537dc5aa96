"""The Streamlit pages, one file a page."""
